package builtin

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/inbound/child"
)

func TestMain(m *testing.M) {
	if child.Supervising() {
		os.Exit(child.Supervise()) //nolint:forbidigo // the process is a supervisor, no test run
	}
	if filepath.Base(os.Args[0]) == "tool" {
		os.Exit(actAsTool(os.Args[1:], os.Stdout)) //nolint:forbidigo // the process is a program, no test run
	}
	goleak.VerifyTestMain(m)
}

// actAsTool is the program that the tests run.
func actAsTool(args []string, out io.Writer) int {
	switch args[0] {
	case "show":
		dir, _ := os.Getwd()
		var names []string
		for _, entry := range os.Environ() {
			name, _, _ := strings.Cut(entry, "=")
			names = append(names, name)
		}
		_ = json.NewEncoder(out).Encode(map[string]any{"args": args, "dir": dir, "env": names, "key": os.Getenv("RELAVIUM_IDEMPOTENCY_KEY")})
	case "fail":
		fmt.Fprint(os.Stderr, "no \xff good")
		return 3
	case "flood":
		for range 64 {
			fmt.Fprint(out, strings.Repeat("0123456789abcdef", 4096))
		}
		fmt.Fprint(out, "the end")
	case "controls":
		fmt.Fprint(out, strings.Repeat("\x01", 4<<20))
	case "wait":
		if err := os.WriteFile(args[1], nil, 0o600); err != nil {
			return 1
		}
		<-time.After(time.Minute)
	case "leave":
		if err := exec.Command(os.Args[0], "wait", args[1]).Start(); err != nil {
			return 1
		}
	}
	return 0
}
