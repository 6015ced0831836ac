//go:build race

package expr

// slowdown is how much longer the machine may take under the race detector.
const slowdown = 20
