package expr

import (
	"unicode/utf8"

	"modernc.org/quickjs"
)

// Compile checks the syntax of an expression; it runs nothing. The error is an
// *Error with reason syntax.
func Compile(source string) error {
	vm, err := newVM()
	if err != nil {
		return err
	}
	_, err = compile(vm, source)
	return join(err, vm.Close())
}

// compile returns the code of a function without parameters that yields the value
// of the expression. The same text must stand between square brackets as well: a
// text that closes the one bracket does not close the other, so it cannot get out.
func compile(vm *quickjs.VM, source string) ([]byte, error) {
	if len(source) > maxSource || !utf8.ValidString(source) {
		return nil, &Error{ReasonSyntax}
	}
	if _, err := vm.Compile("(()=>{\"use strict\";return [\n"+source+"\n]})", quickjs.EvalGlobal); err != nil {
		return nil, &Error{ReasonSyntax}
	}
	code, err := vm.Compile("(()=>{\"use strict\";return (\n"+source+"\n)})", quickjs.EvalGlobal)
	if err != nil {
		return nil, &Error{ReasonSyntax}
	}
	return code, nil
}

// code is compile with what was compiled before kept. The code holds no state: a
// machine that runs it makes everything anew.
func (s *Sandbox) code(vm *quickjs.VM, source string) ([]byte, error) {
	s.mu.Lock()
	code, ok := s.compiled[source]
	s.mu.Unlock()
	if ok {
		return code, nil
	}
	code, err := compile(vm, source)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size += len(source) + len(code); s.size > maxCompiled {
		clear(s.compiled)
		s.size = len(source) + len(code)
	}
	s.compiled[source] = code
	return code, nil
}
