package publish

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/transport"
)

// sessionPurpose is what the keys of gates seal session ids for.
const sessionPurpose = "session"

// maxQuestionID bounds the id of a question of ours, in bytes.
const maxQuestionID = 64

// shared is how sessions of the revisions before 2026-07-28 are good in every
// process that has the run store and the keys.
func (s *Server) shared() *transport.Shared {
	keys := s.ladder.Keys()
	return &transport.Shared{
		Seal: func(plain []byte) string { return keys.SealAs(sessionPurpose, plain) },
		Open: func(sealed string) ([]byte, bool) {
			plain, err := keys.OpenAs(sessionPurpose, sealed)
			return plain, err == nil
		},
		Seen:       s.engine.SeenSession,
		See:        s.engine.SeeSessions,
		End:        s.engine.EndSession,
		Cancel:     s.engine.CancelCall,
		Cancelled:  s.engine.CallCancelled,
		Cancelling: s.engine.Cancelling,
		News:       s.sessionNews,
		Forget:     s.engine.ForgetSessions,
		Reply:      s.takeReply,
	}
}

// sessionNews tells the ladder of its questions, and the transport of the rest.
func (s *Server) sessionNews(ctx context.Context) (transport.News, error) {
	news, err := s.engine.SessionNews(ctx)
	if err != nil {
		return transport.News{}, err
	}
	s.ladder.Hear(news.Settled)
	told := transport.News{Ended: news.Ended}
	for _, c := range news.Cancels {
		told.Cancels = append(told.Cancels, transport.Cancel{ID: c.ID, Session: c.Session, Call: c.Call, Reason: c.Reason, Sent: c.Sent})
	}
	return told, nil
}

// takeReply takes a client's reply to a question for which no call of this process
// waits. One that is not of its session, or is answered already, is passed over.
func (s *Server) takeReply(ctx context.Context, req *transport.Request, id string, a transport.Answer) {
	if len(id) > maxQuestionID {
		return
	}
	ctx, done := context.WithTimeout(ctx, startTimeout)
	defer done()
	if err := s.taken(ctx, req, id, a); err != nil {
		s.log.WarnContext(ctx, "take the reply to a question", slog.Any("error", err))
	}
}

func (s *Server) taken(ctx context.Context, req *transport.Request, id string, a transport.Answer) error {
	asked, ok, err := s.engine.Question(ctx, req.Session.Key(), id)
	if err != nil || !ok {
		return err
	}
	x := &exchange{request: req, caller: callerOf(req), table: s.table.Load()}
	r, err := s.engine.Run(ctx, asked.Run, x.caller.principal)
	if errors.Is(err, engine.ErrRunNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.ladder.Take(ctx, x.client(), s.policy(x.table.published(r.Project, r.Workflow)), asked, replyOf(a))
}

// resume makes the progress of a call go on that was told of event n of its run. What
// happened up to there is not told again, and what comes is larger than whatever was
// told: of one node at most n events and the heartbeats since the run began.
func (p *progress) resume(n int64, began time.Time, heartbeat time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told, p.quiet = n, true
	p.base = int(n+2) + int(max(time.Since(began), 0)/max(heartbeat, time.Millisecond))
	p.further = p.base
}
