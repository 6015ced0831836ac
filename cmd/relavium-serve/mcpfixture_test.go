package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// mcpFixture is an MCP server of 2025-11-25 over stdio, whose tools are what the
// file of its first argument holds, one result of tools/list, read each time. A
// call returns its arguments; of the tool "fail" as an error.
func mcpFixture() {
	out := os.Stdout //nolint:forbidigo // this is a program of its own
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Name      string          `json:"name"`
				Arguments json.RawMessage `json:"arguments"`
			} `json:"params"`
		}
		if json.Unmarshal(lines.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		var result any
		switch m.Method {
		case "initialize":
			result = map[string]any{
				"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}},
				"serverInfo": map[string]any{"name": "fix\u001b[31mture\u202e", "version": "1"},
			}
		case "tools/list":
			data, err := os.ReadFile(os.Args[1])
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
			result = json.RawMessage(data)
		case "tools/call":
			result = map[string]any{
				"content": []any{map[string]any{"type": "text", "text": "got " + string(m.Params.Arguments)}}, "isError": m.Params.Name == "fail",
			}
		default:
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`+"\n", m.ID)
			continue
		}
		raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		fmt.Fprintln(out, string(raw))
	}
}
