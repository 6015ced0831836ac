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
	last_event integer not null default -1
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
	asked integer, nonce text,
	decision text, payload text, comment text not null default '', decided integer, decided_by text, via text
) without rowid;
create unique index if not exists gates_node on gates(run, node) where reason = '';
create index if not exists gates_open on gates(opened, id) where decision is null;
create index if not exists gates_expiry on gates(expires) where decision is null and expires is not null;
create index if not exists gates_decided on gates(decided) where decided is not null;
create table if not exists events(
	id integer primary key, run text not null, n integer not null, count integer not null, json text not null
);
create unique index if not exists events_run on events(run, n);
