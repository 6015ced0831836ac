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

// maxCost is the most that one call is reckoned to cost, in micro-cents.
const maxCost = 1 << 53

// perMillion adds amounts at prices per million. A provider may say any amount:
// negative ones count as nothing, and the sum stays within maxCost.
func perMillion(terms ...[2]int64) int64 {
	var sum, term big.Int
	for _, t := range terms {
		sum.Add(&sum, term.Mul(big.NewInt(max(t[0], 0)), big.NewInt(max(t[1], 0))))
	}
	sum.Add(&sum, big.NewInt(999_999))
	sum.Quo(&sum, big.NewInt(1_000_000))
	if !sum.IsInt64() {
		return maxCost
	}
	return min(sum.Int64(), maxCost)
}

// atLeast is the usage of a turn that failed, of which the provider may have said
// nothing, or only what it began with: not less than what was sent, a token for each
// three bytes, and what came, one for each four.
func (u Usage) atLeast(sent, came int) Usage {
	if came > 0 && u.Input+u.CacheRead+u.CacheWrite <= 0 {
		u.Input = (int64(sent) + 2) / 3
	}
	u.Output = max(u.Output, (int64(came)+3)/4)
	return u
}

// tokens counts what was sent, cached or not, and what came.
func (u Usage) tokens(model string) engine.Tokens {
	in := int64(0)
	for _, n := range []int64{u.Input, u.CacheRead, u.CacheWrite} {
		in += min(max(n, 0), math.MaxInt32)
	}
	return engine.Tokens{Input: in, Output: min(max(u.Output, 0), math.MaxInt32), Model: model}
}
