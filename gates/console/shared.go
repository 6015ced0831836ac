package console

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"time"
)

// What is sealed, each for its purpose.
const (
	sealForm  = "console form"
	sealLogin = "console login"
)

// A sharedLogin is what the cookie of a login holds that any replica takes. Who comes by
// it is asked anew each time, so that it ends with the token; nobody but the replicas can
// read it.
type sharedLogin struct {
	ID     string    `json:"id"`
	Form   string    `json:"form"`
	Secret string    `json:"secret"`
	Ends   time.Time `json:"ends"`
}

// share makes the cookie of a login that replicas share.
func (c *Console) share(secret string) (string, error) {
	raw, err := json.Marshal(sharedLogin{ID: rand.Text(), Form: rand.Text(), Secret: secret, Ends: c.opt.Now().Add(sessionLife)}) //nolint:gosec // G117: it is sealed.
	if err != nil {
		return "", err
	}
	return c.opt.Seals.SealAs(sealLogin, raw), nil
}

// find returns the session of a cookie, or nil.
func (c *Console) find(ctx context.Context, cookie string) *session {
	if c.opt.Seals == nil || cookie == "" {
		return c.sessions.find(cookie)
	}
	raw, err := c.opt.Seals.OpenAs(sealLogin, cookie)
	var login sharedLogin
	if err != nil || json.Unmarshal(raw, &login) != nil || !c.opt.Now().Before(login.Ends) {
		return nil
	}
	who, ok := c.opt.Login.Admit(ctx, login.Secret)
	if !ok {
		return nil
	}
	_, ended, err := c.opt.Engine.SeenSession(ctx, endedLogin(login.ID))
	if err != nil {
		c.log.WarnContext(ctx, "console: a login cannot be looked up", slog.String("error", err.Error()))
	}
	if err != nil || ended {
		return nil
	}
	return &session{visitor: who, form: login.Form, ends: login.Ends, id: login.ID}
}

// end ends a login, on every replica where they share it.
func (c *Console) end(ctx context.Context, s *session, cookie string) error {
	if s.id == "" {
		c.sessions.end(cookie)
		return nil
	}
	return c.opt.Engine.EndSession(ctx, endedLogin(s.id))
}

// endedLogin names a login among the sessions that the store knows to have ended.
func endedLogin(id string) string { return "console " + id }
