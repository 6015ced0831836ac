package gates

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// said writes an outcome in a word or two.
func said(o outcome) string {
	switch o := o.(type) {
	case decided:
		line := o.decision.Decision
		if o.decision.Payload != nil {
			line += " " + string(o.decision.Payload)
		}
		if o.decision.Comment != "" {
			line += " // " + o.decision.Comment
		}
		if o.decision.By != "" || o.decision.Via != "" {
			line += " by " + o.decision.By
		}
		return line
	case invalid:
		return "invalid"
	case cancelled:
		return "cancelled"
	case visited:
		return "visited"
	case reflex:
		return fmt.Sprintf("reflex %s", o.after)
	case broken:
		return "broken"
	case answered:
		return "answered"
	case withdrawn:
		return "withdrawn"
	}
	return fmt.Sprintf("%T", o)
}

func TestReadAnswers(t *testing.T) {
	t.Parallel()
	approval := newForm(&engine.Gate{Type: "approval"}, Name{}, "")
	review := newForm(&engine.Gate{Type: "review"}, Name{}, "")
	input := newForm(&engine.Gate{Type: "input"}, Name{}, "")
	named := newForm(&engine.Gate{Type: "input"}, Name{Field: "name"}, "")
	comment := newForm(&engine.Gate{Type: "input"}, Name{Field: "comment"}, "")
	unknown := newForm(&engine.Gate{Type: "input", Reason: "outcome_unknown"}, Name{}, "")
	page := newForm(&engine.Gate{Type: "approval"}, Name{}, "http://127.0.0.1:1/")
	for _, c := range []struct {
		form  form
		reply string
		want  string
	}{
		{approval, `{"action":"accept","content":{"decision":"approve"}}`, "approved"},
		{approval, `{"action":"accept","content":{"decision":"reject","comment":"not yet"}}`, "rejected // not yet"},
		{review, `{"action":"accept","content":{"comment":null,"decision":"approve"}}`, "approved"},
		{approval, `{"action":"accept","content":{"decision":"approve","approved":false,"extra":{"a":[1]}}}`, "approved"},
		{approval, `{"_meta":{"a":1},"content":{"decision":"approve"},"action":"accept"}`, "approved"},

		// An accept without a valid decision is not an answer.
		{approval, `{"action":"accept"}`, "invalid"},
		{approval, `{"action":"accept","content":null}`, "invalid"},
		{approval, `{"action":"accept","content":{}}`, "invalid"},
		{approval, `{"action":"accept","content":[]}`, "invalid"},
		{approval, `{"action":"accept","content":{"approved":true}}`, "invalid"},
		{approval, `{"action":"accept","content":{"decision":true}}`, "invalid"},
		{approval, `{"action":"accept","content":{"decision":"APPROVE"}}`, "invalid"},
		{approval, `{"action":"accept","content":{"decision":"approve "}}`, "invalid"},
		{approval, `{"action":"accept","content":{"decision":["approve"]}}`, "invalid"},
		{approval, `{"action":"accept","content":{"Decision":"approve"}}`, "invalid"},
		{approval, `{"action":"accept","content":{"decision":"approved"}}`, "invalid"},
		{approval, `{"action":"accept","content":{"decision":"approve","comment":7}}`, "invalid"},
		{approval, `{"action":"accept","content":{"value":"approve"}}`, "invalid"},

		// Content of a decline or a cancel is not looked at (report G03).
		{approval, `{"action":"decline"}`, "rejected"},
		{approval, `{"action":"decline","content":{"approved":true}}`, "rejected"},
		{approval, `{"action":"decline","content":{"decision":"approve"}}`, "rejected"},
		{input, `{"action":"decline","content":{"value":"x"}}`, "rejected"},
		{approval, `{"action":"cancel"}`, "cancelled"},
		{approval, `{"action":"cancel","content":{}}`, "cancelled"},
		{approval, `{"action":"cancel","content":{"decision":"approve"}}`, "cancelled"},

		// What is no result of an elicitation decides nothing.
		{approval, `{}`, "broken"},
		{approval, `null`, "broken"},
		{approval, `"accept"`, "broken"},
		{approval, ``, "broken"},
		{approval, `{"action":"approve"}`, "broken"},
		{approval, `{"action":"Accept","content":{"decision":"approve"}}`, "broken"},
		{approval, `{"action":true,"content":{"decision":"approve"}}`, "broken"},
		{approval, `{"action":"accept","action":"decline","content":{"decision":"approve"}}`, "broken"},
		{approval, `{"content":{"decision":"approve"}}`, "broken"},

		{input, `{"action":"accept","content":{"value":"blue"}}`, `input_provided "blue"`},
		{input, `{"action":"accept","content":{"value":"","comment":"none"}}`, `input_provided "" // none`},
		{input, `{"action":"accept","content":{"value":"{\"a\":1}"}}`, `input_provided {"a":1}`},
		{input, `{"action":"accept","content":{"value":"9007199254740993"}}`, `input_provided 9007199254740993`},
		{input, `{"action":"accept","content":{"value":"007"}}`, `input_provided "007"`},
		{input, `{"action":"accept","content":{"value":7}}`, "invalid"},
		{input, `{"action":"accept","content":{"value":null}}`, "invalid"},
		{input, `{"action":"accept","content":{"decision":"approve"}}`, "invalid"},
		{input, `{"action":"accept","content":{"name":"x"}}`, "invalid"},

		{named, `{"action":"accept","content":{"name":"Ada"}}`, `input_provided "Ada"`},
		{named, `{"action":"accept","content":{"name":7.50}}`, `input_provided 7.50`},
		{named, `{"action":"accept","content":{"name":true}}`, `input_provided true`},
		{named, `{"action":"accept","content":{"name":null}}`, "invalid"},
		{named, `{"action":"accept","content":{"name":{}}}`, "invalid"},
		{named, `{"action":"accept","content":{"name":[1]}}`, "invalid"},
		{named, `{"action":"accept","content":{"value":"Ada"}}`, "invalid"},
		{comment, `{"action":"accept","content":{"comment":"Ada"}}`, `input_provided "Ada"`},

		{unknown, `{"action":"accept","content":{"value":"repeat"}}`, `input_provided "repeat"`},
		{unknown, `{"action":"accept","content":{"value":"again"}}`, "invalid"},

		// At a page, accept means only that the person opens it.
		{page, `{"action":"accept","content":{"decision":"approve"}}`, "visited"},
		{page, `{"action":"accept"}`, "visited"},
		{page, `{"action":"decline"}`, "cancelled"},
		{page, `{"action":"cancel"}`, "cancelled"},
	} {
		if got := said(c.form.read(json.RawMessage(c.reply), time.Second, 500*time.Millisecond)); got != c.want {
			t.Errorf("read(%s gate, %s) = %s, want %s", c.form.gate.Type, c.reply, got, c.want)
		}
	}
}

func TestReadBounds(t *testing.T) {
	t.Parallel()
	approval := newForm(&engine.Gate{Type: "approval"}, Name{}, "")
	input := newForm(&engine.Gate{Type: "input"}, Name{}, "")
	long := strings.Repeat("x", maxValue)
	for _, c := range []struct {
		form  form
		reply string
	}{
		{approval, `{"action":"accept","content":{"decision":"approve","comment":"` + long[:maxComment] + `"}}`},
		{input, `{"action":"accept","content":{"value":"` + long + `"}}`},
	} {
		if got := said(c.form.read(json.RawMessage(c.reply), time.Second, 0)); got != "invalid" {
			t.Errorf("read of an answer of %d bytes = %s, want invalid", len(c.reply), clip(got, 40))
		}
	}
}

// TestReflexDecidesNothing says yes, no and nothing too soon.
func TestReflexDecidesNothing(t *testing.T) {
	t.Parallel()
	f := newForm(&engine.Gate{Type: "approval"}, Name{}, "")
	const yes = `{"action":"accept","content":{"decision":"approve"}}`
	for _, c := range []struct {
		reply        string
		after, least time.Duration
		want         string
	}{
		{yes, 5 * time.Millisecond, 500 * time.Millisecond, "reflex 5ms"},
		{yes, 499 * time.Millisecond, 500 * time.Millisecond, "reflex 499ms"},
		{yes, 500 * time.Millisecond, 500 * time.Millisecond, "approved"},
		{yes, 0, 0, "approved"},
		{yes, -time.Hour, 500 * time.Millisecond, "reflex -1h0m0s"}, // asked by a clock that is ahead
		{yes, -time.Hour, 0, "approved"},
		{`{"action":"decline"}`, 5 * time.Millisecond, 500 * time.Millisecond, "reflex 5ms"},
		{`{"action":"cancel"}`, 5 * time.Millisecond, 500 * time.Millisecond, "reflex 5ms"},
		{`{"action":"accept"}`, 5 * time.Millisecond, 500 * time.Millisecond, "reflex 5ms"},
		{`{"action":7}`, 5 * time.Millisecond, 500 * time.Millisecond, "broken"},
	} {
		if got := said(f.read(json.RawMessage(c.reply), c.after, c.least)); got != c.want {
			t.Errorf("read(%s) %s after the question, least %s = %s, want %s", c.reply, c.after, c.least, got, c.want)
		}
	}
}

// FuzzRead looks for a reply that approves without saying so.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"action":"accept","content":{"decision":"approve"}}`, `{"action":"decline","content":{"decision":"approve"}}`,
		`{"action":"accept","content":{"value":"x"}}`, `{"action":"cancel"}`, `[]`, `{"action":"accept","content":{"decision":"approve","decision":"reject"}}`,
	} {
		f.Add([]byte(seed))
	}
	approval := newForm(&engine.Gate{Type: "approval"}, Name{}, "")
	f.Fuzz(func(t *testing.T, reply []byte) {
		o := approval.read(reply, time.Hour, time.Second)
		d, ok := o.(decided)
		if !ok || d.decision.Decision != engine.Approved {
			return
		}
		var said struct {
			Action  string          `json:"action"`
			Content json.RawMessage `json:"content"`
		}
		var content map[string]any
		if json.Unmarshal(reply, &said) != nil || said.Action != "accept" ||
			json.Unmarshal(said.Content, &content) != nil || content["decision"] != "approve" {
			t.Errorf("%q approves", reply)
		}
		if _, soon := approval.read(reply, time.Millisecond, time.Second).(reflex); !soon {
			t.Errorf("%q approves too soon", reply)
		}
	})
}
