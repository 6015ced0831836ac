package engine

// Active returns how many runs have a segment that executes in this process now.
// A run that waits for a person has none.
func (e *Engine) Active() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.executions)
}
