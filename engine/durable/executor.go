package durable

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite" // DBOS on our SQLite pool
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ABI is the version of the interpreter's step layout. A segment that another
// ABI began is never continued here: it shows as blocked.
const ABI = "wf-1"

const (
	workflowName = "segment"
	queuePoll    = 50 * time.Millisecond
	maxRecovery  = 10_000
	keepFirst    = 4096
)

// A SegmentFunc runs one segment of a run. A nil return ends the segment for
// good; it returns the context's error, and only that, to leave the segment for a
// later process.
type SegmentFunc func(s *Segment) error

// An Executor runs segments durably in this process.
type Executor struct {
	id    string
	store *Store
	dbos  dbos.Context
	pool  *sql.DB       // of a file
	conns *pgxpool.Pool // of a database
	queue string
	here  presence
	run   SegmentFunc
	log   *slog.Logger

	mu    sync.Mutex
	live  map[string]struct{} // segments that run in this process, by workflow id
	first map[string]struct{} // those that Start is beginning

	interrupted bool
	ends        map[*context.CancelFunc]struct{} // of the contexts of what runs here

	ending  atomic.Bool
	closing sync.Once
	closed  error
}

// LaunchOptions say what an executor is.
type LaunchOptions struct {
	Projects []string
	Run      SegmentFunc
	// Offers is what this process says of itself to the others, asked now and then;
	// only replicas on a database say anything. It may be nil.
	Offers func(ctx context.Context) json.RawMessage
	// Lost is called, once, by an executor on a database that is cut off from it: the
	// caller closes the Executor before others take its runs over.
	Lost func()
	Log  *slog.Logger
}

// Launch makes this process an executor of the store for the given projects. It
// recovers nothing by itself. The caller closes the Executor before the Store.
func Launch(ctx context.Context, store *Store, opt LaunchOptions) (*Executor, error) {
	for _, name := range []string{"DBOS__APPVERSION", "DBOS__VMID", "DBOS__CLOUD", "DBOS__APPID"} {
		// These would override what is set below: the id that keeps two processes apart, above all.
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	x := &Executor{
		id: uuid.NewString(), store: store, run: opt.Run, log: opt.Log,
		live:  make(map[string]struct{}),
		first: make(map[string]struct{}),
		ends:  make(map[*context.CancelFunc]struct{}),
	}
	x.queue = "x-" + x.id
	if err := x.launch(ctx, opt); err != nil {
		return nil, errors.Join(err, x.Close(0))
	}
	return x, nil
}

func (x *Executor) launch(ctx context.Context, opt LaunchOptions) (err error) {
	config := dbos.Config{
		AppName:            "relavium-serve",
		Logger:             slog.New(&levelFloor{Handler: x.log.Handler(), min: slog.LevelError, off: &x.ending}),
		ApplicationVersion: ABI,
		ExecutorID:         x.id,
		Serializer:         text{},
	}
	if file := x.store.file; file != nil {
		x.pool = file.pool(2, file.full, "")
		config.SQLiteSystemDB = x.pool
		x.here, err = enterFile(ctx, file.path, x.id, opt.Projects)
	} else {
		if x.conns, err = x.store.cluster.pool(context.WithoutCancel(ctx)); err != nil {
			return storeError(err)
		}
		config.SystemDBPool, config.DatabaseSchema = x.conns, dbosSchema
		if config.SkipMigrations, err = x.store.migrated(ctx); err != nil {
			return storeError(err)
		}
		x.here, err = x.store.enterCluster(ctx, x.id, opt.Projects, opt.Offers, opt.Lost)
	}
	if err != nil {
		return err
	}
	if x.dbos, err = x.store.newContext(ctx, config); err != nil {
		return storeError(err)
	}
	dbos.RegisterWorkflow(x.dbos, x.segment, dbos.WithWorkflowName(workflowName), dbos.WithMaxRecoveryAttempts(maxRecovery))
	dbos.ListenQueues(x.dbos, x.queue)
	if err := dbos.Launch(x.dbos); err != nil {
		return storeError(err)
	}
	if x.store.file != nil {
		// DBOS asks its queues for work twenty times a second; its own index does not serve
		// that question on SQLite, so each would read the whole table.
		if _, err := x.store.Write.ExecContext(ctx, `create index if not exists relavium_queued on workflow_status(queue_name, status)
			where queue_name is not null`); err != nil {
			return storeError(err)
		}
	}
	if _, err := dbos.RegisterQueue(x.dbos, x.queue, dbos.WithQueueBasePollingInterval(queuePoll)); err != nil {
		return storeError(err)
	}
	return nil
}

// newContext also brings the tables of DBOS up to date.
func (s *Store) newContext(ctx context.Context, config dbos.Config) (dbos.Context, error) {
	if s.cluster != nil && !config.SkipMigrations {
		end, err := s.launchAlone(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
	}
	return dbos.NewContext(context.WithoutCancel(ctx), config)
}

// migrated reports whether this user may not change the tables of DBOS, which then
// have to be up to date.
func (s *Store) migrated(ctx context.Context) (bool, error) {
	var fixed bool
	err := s.Read.QueryRowContext(ctx, `select coalesce((select not has_schema_privilege(oid, 'create') from pg_namespace where nspname='`+dbosSchema+`'), false)`).Scan(&fixed)
	return fixed, err
}

// MigrateEngine brings the tables of DBOS in a database up to date; those of a file
// come up to date by themselves. role, which may be "", gets what the service needs.
func (s *Store) MigrateEngine(ctx context.Context, role string, log *slog.Logger) error {
	if s.cluster == nil {
		return nil
	}
	options := []dbos.MigrateOption{dbos.WithMigrateSchema(dbosSchema), dbos.WithMigrateLogger(slog.New(&levelFloor{Handler: log.Handler(), min: slog.LevelError, off: new(atomic.Bool)}))}
	if role != "" {
		options = append(options, dbos.WithMigrateApplicationRole(role))
	}
	end, err := s.launchAlone(ctx)
	if err != nil {
		return storeError(err)
	}
	defer end()
	if err := dbos.Migrate(ctx, s.cluster.config.ConnString(), options...); err != nil {
		return storeError(err)
	}
	if role == "" {
		return nil
	}
	name := pgx.Identifier{role}.Sanitize()
	for _, grant := range []string{
		`grant usage on schema ` + ownSchema + ` to ` + name,
		`grant select, insert, update, delete on all tables in schema ` + ownSchema + ` to ` + name,
		`grant usage on all sequences in schema ` + ownSchema + ` to ` + name,
		`revoke update, delete on ` + ownSchema + `.audit from ` + name,
		`revoke insert, update, delete on ` + ownSchema + `.meta from ` + name,
	} {
		if _, err := s.Write.ExecContext(ctx, grant); err != nil {
			return storeError(err)
		}
	}
	return nil
}

// ID is unique to this process.
func (x *Executor) ID() string { return x.id }

// Adopt adds a project to those that this process says it executes.
func (x *Executor) Adopt(ctx context.Context, project string) error {
	return x.here.adopt(ctx, project)
}

// Fresh reports whether no other process can take this one for dead yet: what may be
// done once only is begun only then. A process may have been stopped for a while, and
// not know.
func (x *Executor) Fresh() bool { return x.here.fresh() }

// A Ref names segment K of a run.
type Ref struct {
	Run string
	K   int
}

func (r Ref) id() string { return r.Run + "#" + strconv.Itoa(r.K) }

func parseRef(id string) (Ref, bool) {
	run, k, ok := strings.Cut(id, "#")
	n, err := strconv.Atoi(k)
	return Ref{Run: run, K: n}, ok && err == nil
}

// Start begins a segment here, unless some process has begun it before: then it
// does nothing. It returns when the beginning is durable.
func (x *Executor) Start(r Ref) error {
	x.mu.Lock()
	if len(x.first) >= keepFirst {
		clear(x.first) // begun by other processes
	}
	x.first[r.id()] = struct{}{}
	x.mu.Unlock()
	_, err := dbos.RunWorkflow(x.dbos, x.segment, r.id(), dbos.WithWorkflowID(r.id()))
	return err
}

// Live reports whether the segment runs in this process now.
func (x *Executor) Live(r Ref) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.live[r.id()]
	return ok
}

func (x *Executor) segment(ctx dbos.Context, id string) (string, error) {
	r, ok := parseRef(id)
	if !ok {
		return "", fmt.Errorf("segment id %q", id)
	}
	x.mu.Lock()
	x.live[id] = struct{}{}
	_, first := x.first[id]
	delete(x.first, id)
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		delete(x.live, id)
		x.mu.Unlock()
	}()
	life, over := x.within(ctx)
	defer over()
	err := x.run(&Segment{Ref: r, Again: !first, ctx: ctx, life: life, of: x})
	if err != nil {
		err = x.left(ctx, err)
	}
	return "", err
}

// within is ctx, ended once Interrupt has returned. over lets go of it.
func (x *Executor) within(ctx context.Context) (life context.Context, over func()) {
	life, cancel := context.WithCancel(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ends[&cancel] = struct{}{}
	if x.interrupted {
		cancel()
	}
	return life, func() {
		cancel()
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.ends, &cancel)
	}
}

// left is the error of what was interrupted: nothing of it is to be recorded, so it
// ends once DBOS has been told, too.
func (x *Executor) left(ctx context.Context, err error) error {
	x.mu.Lock()
	interrupted := x.interrupted
	x.mu.Unlock()
	if !interrupted {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// Interrupt ends the contexts of the segments that run here, which stay for another
// process. Close does so too, and waits for them.
func (x *Executor) Interrupt() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.interrupted = true
	for end := range x.ends {
		(*end)()
	}
}

// A Left is a segment that an executor began and did not end.
type Left struct {
	Ref
	ABI string
	Age time.Duration
}

// Left lists what the executors began and did not end.
func (x *Executor) Left(ctx context.Context, executors ...string) ([]Left, error) {
	if len(executors) == 0 {
		return nil, nil
	}
	list, err := dbos.ListWorkflows(x.dbos,
		dbos.WithFilterExecutorIDs(executors...),
		dbos.WithFilterStatus(dbos.WorkflowStatusPending),
		dbos.WithFilterLoadInput(false), dbos.WithFilterLoadOutput(false))
	if err != nil {
		return nil, err
	}
	queues := make([]string, len(executors))
	for i, id := range executors {
		queues[i] = "x-" + id
	}
	queued, err := dbos.ListWorkflows(x.dbos,
		dbos.WithFilterQueueName(queues...),
		dbos.WithFilterStatus(dbos.WorkflowStatusEnqueued),
		dbos.WithFilterLoadInput(false), dbos.WithFilterLoadOutput(false))
	if err != nil {
		return nil, err
	}
	var out []Left
	seen := make(map[string]bool)
	for _, w := range append(list, queued...) {
		if r, ok := parseRef(w.ID); ok && !seen[w.ID] {
			seen[w.ID] = true
			out = append(out, Left{Ref: r, ABI: w.ApplicationVersion, Age: time.Since(w.UpdatedAt)})
		}
	}
	return out, ctx.Err()
}

// Resume takes segments over: they continue in this process, each completed step
// with its recorded result.
func (x *Executor) Resume(refs []Ref) error {
	if len(refs) == 0 {
		return nil
	}
	_, err := dbos.ResumeWorkflows[string](x.dbos, ids(refs), dbos.WithResumeQueue(x.queue))
	return err
}

// Abandon ends segments that nobody shall continue.
func (x *Executor) Abandon(refs []Ref) error {
	if len(refs) == 0 {
		return nil
	}
	return dbos.CancelWorkflows(x.dbos, ids(refs))
}

// Delete removes what is stored of segments.
func (x *Executor) Delete(refs []Ref) error {
	if len(refs) == 0 {
		return nil
	}
	return dbos.DeleteWorkflows(x.dbos, ids(refs))
}

// Forget removes the queue of an executor that is gone.
func (x *Executor) Forget(executor string) error { return dbos.DeleteQueue(x.dbos, "x-"+executor) }

func ids(refs []Ref) []string {
	out := make([]string, len(refs))
	for i, r := range refs {
		out[i] = r.id()
	}
	return out
}

// Close interrupts the segments that run here, which stay for a later process,
// waits for them at most timeout, and frees the executor's lock. Calling it again
// returns the same result.
func (x *Executor) Close(timeout time.Duration) error {
	x.closing.Do(func() {
		x.ending.Store(true)
		x.Interrupt()
		var errs []error
		if x.dbos != nil {
			errs = append(errs, dbos.Shutdown(x.dbos, timeout))
		}
		if x.pool != nil {
			errs = append(errs, x.pool.Close())
		}
		if x.conns != nil {
			x.conns.Close()
		}
		if x.here != nil {
			errs = append(errs, x.here.leave())
		}
		x.closed = errors.Join(errs...)
	})
	return x.closed
}

// A Segment is one execution of segment K of a run.
type Segment struct {
	Ref
	// Again is set where an execution of this segment may have gone before.
	Again bool

	ctx  dbos.Context
	life context.Context //nolint:containedctx // the segment is its life
	of   *Executor
}

// Context ends when the process shuts down, or loses its database.
func (s *Segment) Context() context.Context { return s.life }

// A Step is the outcome of an effect.
type Step struct {
	Result string
	Err    error // only of the recording itself, or the context's
}

// Go begins a step, or yields the recorded result of one that completed before.
// Steps get their place in the order of the calls, which must be the same in
// every execution of the segment; call it from one goroutine. An error of body is
// not recorded: it leaves the segment for a later process.
func (s *Segment) Go(name string, body func(ctx context.Context) (string, error)) (<-chan Step, error) {
	ch, err := dbos.Go(s.ctx, func(ctx context.Context) (string, error) {
		life, over := s.of.within(ctx)
		defer over()
		result, err := body(life)
		if err != nil {
			err = s.of.left(ctx, err)
		}
		return result, err
	}, dbos.WithStepName(name))
	if err != nil {
		return nil, err
	}
	out := make(chan Step, 1)
	go func() { // it ends with the step, which ends with the segment's context
		o := <-ch
		out <- Step{Result: o.Result, Err: o.Err}
	}()
	return out, nil
}

// text stores strings as they are.
type text struct{}

func (text) Name() string { return "relavium_text" }

func (text) Encode(v any) (*string, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("durable: cannot store a %T", v)
	}
	return &s, nil
}

func (text) Decode(s *string) (any, error) {
	if s == nil {
		return "", nil
	}
	return *s, nil
}

// levelFloor lets through of the library's log what an operator can act on, and
// nothing of the interruptions that a shutdown means to cause.
type levelFloor struct {
	slog.Handler
	min slog.Level
	off *atomic.Bool
}

func (h *levelFloor) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.min && !h.off.Load() && h.Handler.Enabled(ctx, l)
}

func (h *levelFloor) WithAttrs(a []slog.Attr) slog.Handler {
	return &levelFloor{Handler: h.Handler.WithAttrs(a), min: h.min, off: h.off}
}

func (h *levelFloor) WithGroup(name string) slog.Handler {
	return &levelFloor{Handler: h.Handler.WithGroup(name), min: h.min, off: h.off}
}
