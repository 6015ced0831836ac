package inbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/egress"
)

// A session is the one client session with one server in one run.
type session struct {
	peer    *peer
	wire    wire
	client  mcp.Implementation
	depth   int    // of runs that called one another before this one
	version string // empty before the handshake
	modern  bool
	named   mcp.Implementation // how the server calls itself, as sent
	tools   bool               // it declares tools
}

// versioned is a wire whose messages name the protocol's revision beside them.
type versioned interface{ setVersion(version string) }

func (s *session) use(version string) {
	s.version, s.modern = version, mcp.IsModernProtocol(version)
	if w, ok := s.wire.(versioned); ok {
		w.setVersion(version)
	}
}

// errHandshake is why a server and this client cannot talk.
var errHandshake = errors.New("no handshake")

// errLegacyOnly says that the connection did not survive the question of 2026-07-28, as
// some servers before it end at an unknown first message.
var errLegacyOnly = errors.New("the connection ended at the first question")

// negotiate opens the session: server/discover of 2026-07-28 first, then the handshake
// of the revisions before it. A server that answers nothing gets the last quarter of
// ctx's time for the handshake. With legacy set it is asked nothing else.
func (s *session) negotiate(ctx context.Context, legacy bool) error {
	if !legacy {
		err := s.discover(ctx)
		if err == nil || !fallsBack(ctx, err) {
			return err
		}
		if s.peer.alive() != nil {
			return errLegacyOnly
		}
	}
	return s.initialize(ctx)
}

// fallsBack tells whether a failure of server/discover leaves it open that the server
// speaks an earlier revision.
func fallsBack(ctx context.Context, err error) bool {
	if ctx.Err() != nil || egress.ReasonOf(err) != "" || egress.Unsent(err) {
		return false
	}
	if status, ok := errors.AsType[*statusError](err); ok {
		return status.status != 401 && status.status != 403
	}
	return true
}

// discover asks for what the server supports, at the newest revision and, where the
// server names others of its era, once more at the best of those.
func (s *session) discover(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/4))
		defer stop()
	}
	s.use(mcp.LATEST_PROTOCOL_VERSION)
	for range 2 {
		out, err := s.request(ctx, string(mcp.MethodServerDiscover), nil, nil)
		if err == nil {
			if err = s.discovered(out.result); err != nil {
				s.use("")
			}
			return err
		}
		next := supported(err)
		if next == "" || next == s.version {
			s.use("")
			return err
		}
		s.use(next)
	}
	s.use("")
	return errHandshake
}

// supported returns the best revision of the new era in the error of a server that does
// not know the one it was asked at, or "".
func supported(err error) string {
	fault, ok := errors.AsType[*rpcError](err)
	if !ok || fault.code != mcp.UNSUPPORTED_PROTOCOL_VERSION {
		return ""
	}
	var list []string
	if json.Unmarshal(member(fault.data, "supported"), &list) != nil {
		return ""
	}
	if best := mcp.NegotiateMutuallySupportedVersion(list); mcp.IsModernProtocol(best) {
		return best
	}
	return ""
}

func (s *session) discovered(result json.RawMessage) error {
	var list []string
	if json.Unmarshal(member(result, "supportedVersions"), &list) != nil {
		return fmt.Errorf("%w: server/discover returned no versions", errHandshake)
	}
	best := mcp.NegotiateMutuallySupportedVersion(list)
	if !mcp.IsModernProtocol(best) {
		return fmt.Errorf("%w: server/discover names no version of its era", errHandshake)
	}
	s.use(best)
	s.tools = member(member(result, "capabilities"), "tools") != nil
	s.named = implementation(member(member(result, "_meta"), mcp.MetaKeyServerInfo))
	return nil
}

// initialize performs the handshake of the revisions up to 2025-11-25.
func (s *session) initialize(ctx context.Context) error {
	s.use("")
	params, err := json.Marshal(struct {
		Version      string             `json:"protocolVersion"`
		Capabilities struct{}           `json:"capabilities"`
		Client       mcp.Implementation `json:"clientInfo"`
	}{Version: mcp.LATEST_LEGACY_PROTOCOL_VERSION, Client: s.client})
	if err != nil {
		return err
	}
	out, err := s.peer.call(ctx, string(mcp.MethodInitialize), params, nil)
	if err != nil {
		return withStatus(err, out)
	}
	version := textOf(member(out.result, "protocolVersion"))
	if !mcp.IsValidProtocolVersion(version) || mcp.IsModernProtocol(version) {
		return fmt.Errorf("%w: the server wants a revision of the protocol that is not known", errHandshake)
	}
	s.use(version)
	s.tools = member(member(out.result, "capabilities"), "tools") != nil
	s.named = implementation(member(out.result, "serverInfo"))
	if err := s.peer.tell(ctx, "notifications/initialized", nil); err != nil {
		return err
	}
	s.peer.listen(ctx)
	return nil
}

func implementation(raw json.RawMessage) mcp.Implementation {
	return mcp.Implementation{Name: textOf(member(raw, "name")), Version: textOf(member(raw, "version"))}
}

// withStatus keeps the HTTP status of an exchange beside the error it brought.
func withStatus(err error, out outcome) error {
	if _, has := errors.AsType[*statusError](err); has || out.status/100 == 2 || out.status == 0 {
		return err
	}
	return errors.Join(err, &statusError{status: out.status})
}

// depthKey is where a server of ours finds how many runs called one another, so that a
// workflow which calls itself comes to an end.
const depthKey = "relavium/depth"

// request sends a request with what its revision wants every request to say.
func (s *session) request(ctx context.Context, method string, params map[string]json.RawMessage, header map[string]string) (outcome, error) {
	meta := traced(ctx)
	if method == string(mcp.MethodToolsCall) {
		meta[depthKey] = s.depth + 1
	}
	if s.modern {
		meta[mcp.MetaKeyProtocolVersion] = s.version
		meta[mcp.MetaKeyClientCapabilities] = struct{}{}
		meta[mcp.MetaKeyClientInfo] = s.client
	}
	if len(meta) > 0 {
		raw, err := json.Marshal(meta)
		if err != nil {
			return outcome{}, err
		}
		if params == nil {
			params = make(map[string]json.RawMessage, 1)
		}
		params["_meta"] = raw
	}
	var raw json.RawMessage
	if params != nil {
		var err error
		if raw, err = marshal(params); err != nil {
			return outcome{}, err
		}
	}
	return s.peer.call(ctx, method, raw, header)
}

// page asks for one page of the tools, the first if at is empty.
func (s *session) page(ctx context.Context, at string) (json.RawMessage, error) {
	var params map[string]json.RawMessage
	if at != "" {
		raw, err := json.Marshal(at)
		if err != nil {
			return nil, err
		}
		params = map[string]json.RawMessage{"cursor": raw}
	}
	out, err := s.request(ctx, string(mcp.MethodToolsList), params, nil)
	return out.result, err
}
