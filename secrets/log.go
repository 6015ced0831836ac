package secrets

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
)

// Handler returns a slog handler that scrubs messages and attributes on their way to
// h. Attributes of a logger's With are scrubbed as the values known then; a Writer
// below h sees to values that were learned later.
func (s *Scrubber) Handler(h slog.Handler) slog.Handler { return &handler{s, h} }

type handler struct {
	scrubber *Scrubber
	inner    slog.Handler
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.inner.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error { //nolint:gocritic // the interface's signature
	if h.scrubber.known() == nil {
		return h.inner.Handle(ctx, r)
	}
	clean := slog.NewRecord(r.Time, r.Level, h.scrubber.String(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.attr(a))
		return true
	})
	return h.inner.Handle(ctx, clean)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.attr(a)
	}
	return &handler{h.scrubber, h.inner.WithAttrs(clean)}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.scrubber, h.inner.WithGroup(h.scrubber.String(name))}
}

func (h *handler) attr(a slog.Attr) slog.Attr {
	return slog.Attr{Key: h.scrubber.String(a.Key), Value: h.value(a.Value.Resolve())}
}

func (h *handler) value(v slog.Value) slog.Value {
	switch v.Kind() { //nolint:exhaustive // the other kinds hold numbers
	case slog.KindString:
		return slog.StringValue(h.scrubber.String(v.String()))
	case slog.KindGroup:
		group := v.Group()
		clean := make([]slog.Attr, len(group))
		for i, a := range group {
			clean[i] = h.attr(a)
		}
		return slog.GroupValue(clean...)
	case slog.KindAny:
		// A handler may print it or marshal it: neither may show a value.
		printed := fmt.Sprintf("%+v", v.Any())
		marshaled, err := json.Marshal(v.Any())
		if err != nil {
			marshaled = nil
		}
		clean := h.scrubber.String(printed)
		if clean != printed || h.scrubber.String(string(marshaled)) != string(marshaled) {
			return slog.StringValue(clean)
		}
	}
	return v
}
