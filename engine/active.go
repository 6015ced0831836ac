package engine

// Active returns how many runs have a segment that executes in this process now.
// A run that waits for a person has none. Those that are named are not counted.
func (e *Engine) Active(but ...string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.executions)
	for _, run := range but {
		if _, executes := e.executions[run]; executes {
			n--
		}
	}
	return n
}
