package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/inbound"
)

// An openedStore is the run store of the process, for those who need it before it is
// open.
type openedStore struct {
	once  sync.Once
	ready chan struct{}
	eng   *engine.Engine
}

func newOpenedStore() *openedStore { return &openedStore{ready: make(chan struct{})} }

func (o *openedStore) set(eng *engine.Engine) {
	o.once.Do(func() {
		o.eng = eng
		close(o.ready)
	})
}

// wait returns the store once it is open, or why ctx ended.
func (o *openedStore) wait(ctx context.Context) (*engine.Engine, error) {
	select {
	case <-o.ready:
		return o.eng, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A document is what replicas share in the database, where one process has a file in
// its home.
type document struct {
	at   *site
	name string
}

// Read returns the document, or nil if there is none.
func (d document) Read(ctx context.Context, limit int) ([]byte, error) {
	eng, err := d.at.opened.wait(ctx)
	if err != nil {
		return nil, err
	}
	content, err := eng.Document(ctx, d.name)
	if err == nil && len(content) > limit {
		return nil, d.large(limit)
	}
	return content, err
}

// Replace puts what change makes of the document in its place.
func (d document) Replace(ctx context.Context, limit int, change func(old []byte) ([]byte, error)) error {
	eng, err := d.at.opened.wait(ctx)
	if err != nil {
		return err
	}
	return eng.ReplaceDocument(ctx, d.name, func(old []byte) ([]byte, error) {
		made, err := change(old)
		if err == nil && len(made) > limit {
			err = d.large(limit)
		}
		return made, err
	})
}

func (d document) large(limit int) error {
	return fmt.Errorf("%s in the database: larger than %d bytes", d.name, limit)
}

// pinStore is where definitions are pinned: nil for the file of the home.
func (at *site) pinStore() inbound.PinStore {
	if at.shared == nil {
		return nil
	}
	return document{at, "mcp-pins"}
}
