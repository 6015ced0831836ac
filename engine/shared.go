package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// maxDocument bounds a document in bytes.
const maxDocument = 32 << 20

// Document returns what was put under a name for all processes that share the store:
// nil where nothing was. It is for small things beside the runs, such as who may call.
func (e *Engine) Document(ctx context.Context, name string) ([]byte, error) {
	var content sql.NullString
	err := e.store.Read.QueryRowContext(ctx, `select content from documents where name=?`, name).Scan(&content)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("run store: %w", err)
	}
	return []byte(content.String), nil
}

// ReplaceDocument puts in the place of a document what change makes of it; meanwhile
// no process puts another. The content is UTF-8 text without NUL, of at most 32 MiB;
// change may be called again, and its error is returned.
func (e *Engine) ReplaceDocument(ctx context.Context, name string, change func(old []byte) ([]byte, error)) error {
	var refused error
	err := e.update(ctx, "document "+name, func(tx *sql.Tx) error {
		refused = nil
		var content sql.NullString
		err := tx.QueryRowContext(ctx, `select content from documents where name=?`, name).Scan(&content)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var old []byte
		if content.Valid {
			old = []byte(content.String)
		}
		made, err := change(old)
		if err == nil && len(made) > maxDocument {
			err = fmt.Errorf("%s: larger than %d bytes", name, maxDocument)
		}
		if err != nil {
			refused = err
			return err
		}
		_, err = tx.ExecContext(ctx, `insert into documents(name, content, changed) values(?,?,?)
			on conflict(name) do update set content=excluded.content, changed=excluded.changed`, name, string(made), e.now().UnixMilli())
		return err
	})
	switch {
	case err == nil:
		return nil
	case refused != nil:
		return refused
	}
	return fmt.Errorf("run store: %w", err)
}
