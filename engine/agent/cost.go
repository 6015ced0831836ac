package agent

import (
	"math"
	"math/big"

	"github.com/relavium/relavium-serve/engine"
)

// cost is what the usage costs at a price, in micro-cents, rounded up.
func cost(u Usage, p Price) int64 {
	return perMillion(
		[2]int64{u.Input, p.Input}, [2]int64{u.Output, p.Output},
		[2]int64{u.CacheRead, p.CacheRead}, [2]int64{u.CacheWrite, p.CacheWrite},
	)
}

// estimate is what a turn may cost: its input, a token for each three bytes, and as
// many tokens of output as it may give.
func estimate(bytes, output int, p Price) int64 {
	return perMillion([2]int64{(int64(bytes) + 2) / 3, p.Input}, [2]int64{int64(output), p.Output})
}

// perMillion adds amounts at prices per million. A provider may say any amount:
// negative ones count as nothing, and the sum stays within int64.
func perMillion(terms ...[2]int64) int64 {
	var sum, term big.Int
	for _, t := range terms {
		sum.Add(&sum, term.Mul(big.NewInt(max(t[0], 0)), big.NewInt(max(t[1], 0))))
	}
	sum.Add(&sum, big.NewInt(999_999))
	sum.Quo(&sum, big.NewInt(1_000_000))
	if !sum.IsInt64() {
		return math.MaxInt64
	}
	return sum.Int64()
}

// tokens counts what was sent, cached or not, and what came.
func (u Usage) tokens(model string) engine.Tokens {
	in := int64(0)
	for _, n := range []int64{u.Input, u.CacheRead, u.CacheWrite} {
		in += min(max(n, 0), math.MaxInt32)
	}
	return engine.Tokens{Input: in, Output: min(max(u.Output, 0), math.MaxInt32), Model: model}
}
