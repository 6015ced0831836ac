package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/workflows"
)

// gateOptions sets how persons are asked: the keys that seal questions, of the home
// or of [gates] key_file, and how soon an answer may come.
func (at *site) gateOptions(ctx context.Context, opt *publish.Options) error {
	opt.MinHuman = time.Duration(*at.Gates.MinHumanMS) * time.Millisecond
	if opt.MinHuman == 0 {
		opt.MinHuman = -1
	}
	var err error
	opt.Keys, err = at.gateKeys(ctx)
	return err
}

// gateKeys are the keys that seal what goes through clients and browsers.
func (at *site) gateKeys(ctx context.Context) (keys *gates.Keys, err error) {
	if file := at.Gates.KeyFile; file != nil {
		keys, err = gates.OpenKeyFile(ctx, *file, at.log)
	} else {
		keys, err = gates.OpenKeys(ctx, at.home, at.log)
	}
	if err != nil {
		return nil, &fault{code: exitFault, err: err}
	}
	return keys, nil
}

// nameGates sets what the configuration says about the gates of a workflow.
func (at *site) nameGates(w *publish.Workflow) error {
	set := at.Serve.Workflow[w.ID]
	if set.MinHumanMS != nil {
		w.MinHuman = time.Duration(*set.MinHumanMS) * time.Millisecond
	}
	w.NotRequester = set.ApproverNotRequester != nil && *set.ApproverNotRequester
	w.Gates = make(map[string]gates.Name, len(set.Gate))
	for _, id := range slices.Sorted(maps.Keys(set.Gate)) {
		if node, ok := w.Node(id); !ok || node.Type() != "human_gate" {
			at.log.Warn("the configuration names a gate that the workflow does not have", "key", "serve.workflow."+w.ID+".gate."+id)
			continue
		}
		var name gates.Name
		if key := set.Gate[id].Key; key != nil {
			name.Key = *key
		}
		if field := set.Gate[id].Field; field != nil {
			name.Field = *field
		}
		w.Gates[id] = name
	}
	return uniqueKeys(w)
}

// uniqueKeys refuses two gates that a client could not tell apart.
func uniqueKeys(w *publish.Workflow) error {
	owner := make(map[string]string)
	for i := range w.Nodes {
		id := w.Nodes[i].ID
		if _, ok := w.Nodes[i].Spec.(workflows.GateNode); !ok {
			continue
		}
		key := id
		if own := w.Gates[id].Key; own != "" {
			key = own
		}
		if first, taken := owner[key]; taken {
			return invalid("set serve.workflow."+w.ID+".gate."+id+".key to another name",
				"workflow %q: the gates %q and %q have the key %q both", w.ID, first, id, key)
		}
		owner[key] = id
	}
	return nil
}
