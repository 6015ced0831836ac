package inbound

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// traced is the _meta of a request that is sent in a span: which one that is
// (SEP-414). It is empty where there is none. No baggage goes out.
func traced(ctx context.Context) map[string]any {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	meta := make(map[string]any, len(carrier)+3)
	for name, value := range carrier {
		meta[name] = value
	}
	return meta
}
