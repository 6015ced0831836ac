package engine

import (
	"context"
	"fmt"
	"time"
)

// Spent returns what the runs of a principal cost that were created since then,
// in micro-cents.
func (e *Engine) Spent(ctx context.Context, p Principal, since time.Time) (int64, error) {
	// Ids begin with the time of their making (RFC 9562 5.7), so that this reads
	// no older rows.
	ms := fmt.Sprintf("%012x", max(since.UnixMilli(), 0))
	var cost int64
	err := e.store.Read.QueryRowContext(ctx, `select coalesce(sum(cost), 0) from runs where id>=? and principal=?`, ms[:8]+"-"+ms[8:], string(p)).Scan(&cost)
	if err != nil {
		return 0, fmt.Errorf("run store: %w", err)
	}
	return cost, nil
}
