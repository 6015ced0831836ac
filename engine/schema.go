package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"

	"github.com/relavium/relavium-serve/engine/durable"
)

// schemaVersion is what this binary writes. A newer store is refused; a newer
// binary migrates an older store by adding only, so that an older process which
// runs on keeps working.
const schemaVersion = 3

// schema is the run store (times are Unix milliseconds; JSON is text). A row of
// events holds all events that one transaction stored, from number n on.
const schema = `
create table if not exists meta(schema integer not null);
create table if not exists definitions(digest text primary key, json text not null) without rowid;
create table if not exists runs(
	id text primary key,
	project text not null, root text not null, workflow text not null, digest text not null,
	principal text not null, source text not null, client text not null,
	idem_key text, args_digest text not null,
	inputs text not null, ctx text not null,
	state text not null, seg integer not null default 0, settled text not null default '[]',
	epoch integer not null default 0, reserved integer not null default 0,
	deadline integer, created integer not null, started integer, ended integer,
	holder text, detached integer, detach_reason text, kept integer not null default 0, claimed integer,
	cancel_by text, cancel_reason text,
	error text, outputs text, cost integer not null default 0,
	last_event integer not null default -1,
	needs text, trace text, depth integer not null default 0
) without rowid;
create unique index if not exists runs_key on runs(project, workflow, principal, idem_key) where idem_key is not null;
create index if not exists runs_open on runs(state, project) where ended is null;
create index if not exists runs_cancel on runs(cancel_by) where cancel_by is not null and ended is null;
create index if not exists runs_join on runs(project, workflow, principal, args_digest) where detached is not null;
create index if not exists runs_deadline on runs(deadline) where deadline is not null and ended is null;
create index if not exists runs_ended on runs(ended) where ended is not null;
create table if not exists gates(
	id text primary key, run text not null, node text not null, key text not null, reason text not null,
	type text not null, message text not null, assignee text not null,
	opened integer not null, expires integer, timeout_action text not null,
	asked integer, nonce text, effect text not null default '',
	decision text, payload text, comment text not null default '', decided integer, decided_by text, via text
) without rowid;
create unique index if not exists gates_node on gates(run, node) where reason = '';
create index if not exists gates_run on gates(run);
create index if not exists gates_open on gates(opened, id) where decision is null;
create index if not exists gates_expiry on gates(expires) where decision is null and expires is not null;
create index if not exists gates_decided on gates(decided) where decided is not null;
create table if not exists events(
	id integer primary key, run text not null, n integer not null, count integer not null, json text not null
);
create unique index if not exists events_run on events(run, n);
create table if not exists effects(
	run text not null, node text not null, dispatch integer not null, path text not null, n integer not null,
	kind text not null, name text not null, server text not null default '', request text not null, repeatable integer not null,
	approval text, state text not null, sent integer not null, result text, tokens text, cost integer not null default 0, epoch integer not null,
	primary key(run, node, dispatch, path, n)
) without rowid;
create unique index if not exists effects_approval on effects(approval) where approval is not null;
create table if not exists audit(
	id integer primary key, at integer not null, principal text not null, via text not null, action text not null,
	run text not null default '', workflow text not null default '', digest text not null default '', consent text not null default '',
	decision text not null default '', what text not null default ''
);
create index if not exists audit_at on audit(at);
create table if not exists sessions(id text primary key, seen integer not null, ended integer) without rowid;
create index if not exists sessions_ended on sessions(ended) where ended is not null;
create table if not exists questions(
	id text primary key, session text not null, run text not null, gate text not null, sent integer not null,
	field text not null, url integer not null, again integer not null, outcome text, settled integer
) without rowid;
create index if not exists questions_gate on questions(gate);
create index if not exists questions_sent on questions(sent);
create index if not exists questions_settled on questions(settled) where settled is not null;
create table if not exists cancels(
	id text primary key, session text not null, call text not null, reason text not null, sent integer not null, done integer
) without rowid;
create index if not exists cancels_session on cancels(session) where done is null;
create index if not exists cancels_sent on cancels(sent);
create table if not exists documents(name text primary key, content text not null, changed integer not null) without rowid;
`

// additions are what an older schema lacks in tables that it has, by its number.
func additions(found int) []string {
	var out []string
	if found == 1 {
		out = append(out, `alter table gates add column effect text not null default ''`)
	}
	if found == 1 || found == 2 {
		out = append(out, `alter table runs add column needs text`, `alter table runs add column trace text`,
			`alter table runs add column depth integer not null default 0`)
	}
	return out
}

// migrate brings an older or empty store to this schema in one exclusive
// transaction and refuses a newer one.
func migrate(ctx context.Context, store *durable.Store) error {
	err := store.Prepare(ctx, func(tx *sql.Tx) error { return migrateIn(ctx, store, tx) })
	switch {
	case durable.Denied(err):
		return ErrMigrate
	case err == nil || isSchema(err):
		return err
	}
	return fmt.Errorf("run store: %w", err)
}

func isSchema(err error) bool {
	_, ok := errors.AsType[*SchemaError](err)
	return ok
}

func migrateIn(ctx context.Context, store *durable.Store, tx *sql.Tx) error {
	exists, err := store.HasTable(ctx, tx, "meta")
	if err != nil {
		return err
	}
	found := 0
	if exists {
		if err := tx.QueryRowContext(ctx, `select schema from meta`).Scan(&found); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	switch {
	case found > schemaVersion:
		return &SchemaError{Found: found, Known: schemaVersion}
	case found == schemaVersion:
		return nil
	}
	for _, query := range append(additions(found), schema) {
		if _, err := tx.ExecContext(ctx, store.Schema(query)); err != nil {
			return err
		}
	}
	if found == 0 {
		_, err = tx.ExecContext(ctx, `insert into meta(schema) values(?)`, schemaVersion)
	} else {
		_, err = tx.ExecContext(ctx, `update meta set schema=?`, schemaVersion)
	}
	return err
}

// Migrate brings a store up to date without opening it for runs, as a database whose
// service may not change tables needs; role, which may be "", is the database user of
// the service, which gets what it needs and may not change or delete the audit log.
// It returns the schema found, 0 for none, and the one now there.
func Migrate(ctx context.Context, place, role string, log *slog.Logger) (found, now int, err error) {
	store, err := durable.Open(ctx, durable.Options{Place: place, Log: log})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Prepare(ctx, func(tx *sql.Tx) error {
		exists, err := store.HasTable(ctx, tx, "meta")
		if err != nil || !exists {
			return err
		}
		err = tx.QueryRowContext(ctx, `select schema from meta`).Scan(&found)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	}); err != nil {
		return 0, 0, fmt.Errorf("run store: %w", err)
	}
	if err := migrate(ctx, store); err != nil {
		return found, 0, err
	}
	return found, schemaVersion, store.MigrateEngine(ctx, role, log)
}
