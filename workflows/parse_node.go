package workflows

import (
	"encoding/json"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A nodeSource is the item that a node of Workflow.Nodes was read from.
type nodeSource struct {
	item  *item
	where string
}

// nodes reads format 1.11 and 1.12.
func (c *checker) nodes(d *draft, o *object) {
	list := o.need("nodes", "P15", "")
	entries, ok := c.list(list, o.at("nodes"))
	if ok && len(entries) == 0 {
		c.add(list, "P15", o.at("nodes"), "want at least one node", "")
	}
	first := make(map[string]int)
	for i, n := range entries {
		where := index(o.at("nodes"), i)
		node := c.node(n, where)
		if node.ID == "" {
			d.partialNodes = true
			continue
		}
		if line, twice := first[node.ID]; twice {
			c.twice(n.member("id"), "P50", where+".id", "node id "+shown(node.ID), line)
			continue
		}
		first[node.ID] = n.member("id").line
		d.workflow.Nodes = append(d.workflow.Nodes, node)
		d.nodes = append(d.nodes, nodeSource{item: n, where: where})
	}
	if list == nil || !ok {
		d.partialNodes = true
	}
}

func nodeTypes() []string {
	return []string{"input", "agent", "human_gate", "condition", "transform", "parallel", "merge", "output"}
}

// node reads one node; its Spec is nil when its type is not known.
func (c *checker) node(n *item, where string) (out Node) {
	o := c.object(n, where)
	out.ID, _ = o.kebab("id", "P50")
	out.Label, _ = o.text("label")
	out.Description, _ = o.text("description")
	o.get("position")
	o.need("type", "P51", "use one of "+strings.Join(nodeTypes(), ", "))
	kind := o.word("type", "P51", false, nodeTypes()...)
	switch kind {
	case "agent", "condition", "transform", "merge":
		out.Retry = c.retry(o)
	case "":
		return out
	default:
		if v := o.n.member("retry"); v != nil {
			o.get("retry")
			c.add(v, "P54", o.at("retry"), "a node of type "+kind+" cannot be retried", "remove it")
		}
	}
	switch kind {
	case "input":
		out.Spec = InputNode{}
	case "agent":
		out.Spec = c.agentNode(o)
	case "human_gate":
		out.Spec = c.gateNode(o)
	case "condition":
		out.Spec = c.conditionNode(o)
	case "transform":
		expression, _ := o.required("transform", "P52")
		c.expressionType(o)
		out.Spec = TransformNode{Expression: expression, OutputSchema: o.schema("output_schema")}
	case "parallel":
		out.Spec = c.parallelNode(o)
	case "merge":
		out.Spec = c.mergeNode(o)
	case "output":
		format, _ := o.text("output_format")
		out.Spec = OutputNode{Format: format, SaveTo: c.saveTo(o)}
	}
	o.close()
	return out
}

// expressionType allows js, which is the default (format 1.12).
func (c *checker) expressionType(o *object) {
	if s, ok := o.text("expression_type"); ok && s != "js" {
		c.add(o.get("expression_type"), "P53", o.at("expression_type"), "expressions are JavaScript only", "write js, or leave it out")
	}
}

func (c *checker) agentNode(o *object) AgentNode {
	var a AgentNode
	if ref, ok := o.required("agent_ref", "P52"); ok {
		if isKebab(ref) {
			a.AgentRef = ref
		} else {
			c.add(o.get("agent_ref"), "P52", o.at("agent_ref"), "not a kebab-case id", kebabRemedy)
		}
	}
	a.Prompt = o.template("prompt_template")
	a.SystemPromptAppend, _ = o.text("system_prompt_append")
	a.Model, _ = o.text("model")
	a.Temperature = o.within("temperature", "P32", 0, 2)
	a.MaxTokens = o.count("max_tokens", "P13")
	a.Tools = c.tools(o)
	a.OutputSchema = o.schema("output_schema")
	a.Timeout = o.millis("timeout_ms", "P13")
	c.modalities(o)
	for _, key := range []string{"count", "duration_seconds"} {
		if v := o.get(key); v != nil {
			c.add(v, "P73", o.at(key), "generating media is not part of this version", "remove it")
		}
	}
	return a
}

func (c *checker) modalities(o *object) {
	n := o.get("output_modalities")
	entries, ok := o.list("output_modalities")
	if ok && len(entries) == 0 {
		c.add(n, "P58", o.at("output_modalities"), "output_modalities is empty", "leave it out for text")
	}
	for i, m := range entries {
		where := index(o.at("output_modalities"), i)
		switch s, ok := c.text(m, where); {
		case !ok || s == "text":
		case slices.Contains([]string{"image", "audio", "video"}, s):
			c.add(m, "P73", where, "generating media is not part of this version", "use text")
		default:
			c.add(m, "P58", where, "unknown modality", "use text")
		}
	}
}

func (c *checker) gateNode(o *object) GateNode {
	o.need("gate_type", "P52", "use one of approval, review, input")
	g := GateNode{
		GateType:      o.word("gate_type", "P57", false, "approval", "review", "input"),
		Assignee:      o.template("assignee"),
		Message:       o.template("message_template"),
		Timeout:       o.millis("timeout_ms", "P13"),
		TimeoutAction: o.word("timeout_action", "P57", false, "reject", "approve"),
	}
	switch action := o.get("timeout_action"); {
	case g.Timeout > 0 && action == nil:
		g.TimeoutAction = "reject"
	case o.get("timeout_ms") == nil && action != nil && g.TimeoutAction != "":
		c.warn(action, "P57", o.at("timeout_action"), "timeout_action does nothing without timeout_ms", "add timeout_ms")
		g.TimeoutAction = ""
	}
	return g
}

func (c *checker) conditionNode(o *object) ConditionNode {
	var cond ConditionNode
	cond.Expression, _ = o.required("expression", "P52")
	c.expressionType(o)
	list := o.need("branches", "P52", "")
	entries, ok := o.list("branches")
	if ok && len(entries) == 0 {
		c.add(list, "P55", o.at("branches"), "want at least one branch", "")
	}
	first := make(map[string]int)
	for i, n := range entries {
		where := index(o.at("branches"), i)
		b := c.object(n, where)
		var branch Branch
		when := b.need("when", "P55", "")
		if when != nil {
			switch when.kind {
			case boolItem, stringItem, numberItem:
				branch.When = when.json()
				key := whenIdentity(branch.When)
				if line, twice := first[key]; twice {
					c.twice(when, "P64", b.at("when"), "branch value", line)
				} else {
					first[key] = when.line
				}
			case badItem:
			case nullItem, listItem, mapItem:
				c.add(when, "P55", b.at("when"), "want a boolean, a string or a number, got "+when.kind.String(), "")
			}
		}
		branch.Target, _ = b.required("target_node", "P52")
		b.close()
		cond.Branches = append(cond.Branches, branch)
	}
	cond.Default, _ = o.text("default")
	return cond
}

// whenIdentity is equal for two values that JavaScript's === holds equal.
func whenIdentity(when json.RawMessage) string {
	if kindOf(when) == "number" {
		return "number " + whenText(when)
	}
	return string(when)
}

// whenText is the text form of a branch value, as a handle names it.
func whenText(when json.RawMessage) string {
	if s, ok := stringValue(when); ok {
		return s
	}
	if kindOf(when) != "number" {
		return string(when)
	}
	f, err := strconv.ParseFloat(string(when), 64)
	switch {
	case err != nil:
		return string(when)
	case f == 0:
		return "0"
	case math.Abs(f) >= 1e21 || math.Abs(f) < 1e-6:
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

func (c *checker) parallelNode(o *object) ParallelNode {
	list := o.need("parallel_of", "P52", "")
	if list != nil && list.kind == listItem && len(list.items) == 0 {
		c.add(list, "P52", o.at("parallel_of"), "want at least one node id", "")
	}
	return ParallelNode{Of: o.texts("parallel_of")}
}

func (c *checker) mergeNode(o *object) MergeNode {
	var m MergeNode
	o.need("merge_strategy", "P52", "")
	m.Strategy = o.word("merge_strategy", "P56", false, "concat", "object_merge", "first", "custom")
	n := o.get("merge_fn")
	switch {
	case m.Strategy == "custom":
		m.Expression, _ = o.required("merge_fn", "P56")
	case n != nil && m.Strategy != "":
		if _, ok := o.text("merge_fn"); ok {
			c.warn(n, "P56", o.at("merge_fn"), "merge_fn does nothing without merge_strategy: custom", "remove it")
		}
	}
	return m
}

// saveTo is a relative path that may refer to run.id only (P59).
func (c *checker) saveTo(o *object) *Template {
	n := o.get("save_to")
	t := o.template("save_to")
	if t == nil {
		return nil
	}
	bad := func(what, remedy string) *Template {
		c.add(n, "P59", o.at("save_to"), what, remedy)
		return nil
	}
	for _, r := range t.refs() {
		if r.kind != refRun || r.name != "id" {
			return bad("only run.id can be referred to here", "")
		}
	}
	words := strings.ReplaceAll(n.text, `\`, "/")
	switch {
	case strings.TrimSpace(words) == "":
		return bad("path is empty", "")
	case path.IsAbs(words) || len(words) > 1 && words[1] == ':' && isLetter(words[0]):
		return bad("path is absolute", "write it relative to the project root")
	case slices.Contains(strings.Split(words, "/"), ".."):
		return bad("path leaves its folder", "remove ..")
	}
	return t
}

// An edgeSource is one authored edge.
type edgeSource struct {
	item      *item
	where     string
	from, to  string
	handle    string
	hasHandle bool
	condition string
	label     string
}

// edges reads format 1.13.
func (c *checker) edges(d *draft, o *object) {
	o.need("edges", "P16", "write edges: [] for none")
	entries, _ := o.list("edges")
	for i, n := range entries {
		where := index(o.at("edges"), i)
		e := c.object(n, where)
		s := edgeSource{item: n, where: where}
		from, okFrom := e.required("from", "P66")
		to, okTo := e.required("to", "P66")
		s.from, s.handle, s.hasHandle = strings.Cut(from, ":")
		s.to = to
		s.label, _ = e.text("label")
		s.condition, _ = e.text("condition")
		if v := e.get("condition"); v != nil && v.kind == stringItem && strings.TrimSpace(v.text) == "" {
			c.add(v, "P13", e.at("condition"), "condition is empty", "leave it out for always")
		}
		e.closeAs("P65")
		if okFrom && okTo {
			d.edges = append(d.edges, s)
		}
	}
}

func retryDelay(r *Retry, n int) time.Duration {
	const longest = 24 * time.Hour
	if r == nil || n < 1 {
		return 0
	}
	factor := int64(n)
	if r.Backoff == "exponential" {
		factor = 1 << min(n-1, 62)
	}
	if r.Base <= 0 {
		return 0
	}
	if factor > int64(longest/r.Base) {
		return longest
	}
	return min(r.Base*time.Duration(factor), longest)
}
