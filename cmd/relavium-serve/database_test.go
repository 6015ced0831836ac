package main

import (
	"bytes"
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// command runs a command line with a home of its own and returns what it printed.
func command(t *testing.T, home string, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, diagnostics bytes.Buffer
	environ := append([]string{"HOME=" + home, "USERPROFILE=" + home, "RELAVIUM_HOME=" + filepath.Join(home, ".relavium")}, env...)
	code = run(t.Context(), args, strings.NewReader(""), &out, &diagnostics, environ)
	return code, out.String(), diagnostics.String()
}

// The user that migrate grants what the service needs serves, makes no table, and can
// only add to the audit log; one that was granted nothing is told to have it migrated.
func TestServiceRole(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	ctx := t.Context()
	owner, err := pgx.Connect(ctx, place)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(place)
	if err != nil {
		t.Fatal(err)
	}
	role := "flows_" + strings.TrimPrefix(u.Path, "/")
	exec := func(conn *pgx.Conn, query string) error {
		_, err := conn.Exec(ctx, query)
		return err
	}
	if err := exec(owner, "create role "+role+" login password 'canary-canary'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		for _, query := range []string{"drop owned by " + role, "drop role " + role} {
			if _, err := owner.Exec(ctx, query); err != nil {
				t.Error(err)
			}
		}
		_ = owner.Close(ctx)
	})
	u.User = url.UserPassword(role, "canary-canary")
	service := []string{databaseVariable + "=" + u.String()}
	home := t.TempDir()
	file := filepath.Join(home, "says.relavium.yaml")
	source := "schema_version: '1.0'\nworkflow:\n  id: says\n  nodes: [{id: in, type: input}, {id: out, type: output}]\n  edges: [{from: in, to: out}]\n"
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}

	if code, _, said := command(t, home, service, "run", file); code != 2 || !strings.Contains(said, "relavium-serve migrate") || strings.Contains(said, "canary") {
		t.Errorf("run before migrate = %d, %s, want 2 and the command", code, said)
	}
	for range 2 {
		if code, _, said := command(t, home, []string{databaseVariable + "=" + place}, "migrate", "--role", role); code != 0 || !strings.Contains(said, role+" may serve") {
			t.Fatalf("migrate --role = %d, %s", code, said)
		}
	}
	if code, _, said := command(t, home, service, "run", file); code != 0 {
		t.Fatalf("run as the service = %d, %s", code, said)
	}
	if code, out, said := command(t, home, service, "audit"); code != 0 || !strings.Contains(out, "run.ended") {
		t.Errorf("audit as the service = %d, %s%s, want run.ended", code, out, said)
	}

	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, query := range []string{
		"update relavium.audit set principal='x'", "delete from relavium.audit", "truncate relavium.audit",
		"create table relavium.mine(x int)", "drop table relavium.runs", "alter table relavium.runs add column mine int",
	} {
		if err := exec(conn, query); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("as the service, %s = %v, want SQLSTATE 42501", query, err)
		}
	}

	if err := exec(owner, "update relavium.meta set schema=99"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"runs", "list"}, {"migrate"}} {
		if code, _, said := command(t, home, []string{databaseVariable + "=" + place}, args...); code != 2 || !strings.Contains(said, "schema 99") || !strings.Contains(said, "knows 3") {
			t.Errorf("%s with a newer schema = %d, %s, want 2 and both numbers", args, code, said)
		}
	}
}

// A password file is used as every program of PostgreSQL does; a wrong password is
// refused without being shown.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	u, err := url.Parse(place)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("nobody_of_that_name", "canary-canary")
	code, out, said := command(t, t.TempDir(), []string{databaseVariable + "=" + u.String()}, "runs", "list")
	if code != 1 || !strings.Contains(said, u.Host) || !strings.Contains(said, "the database refuses") || strings.Contains(out+said, "canary") {
		t.Errorf("runs list = %d, %s%s, want 1, the host and no password", code, out, said)
	}
}
