package containers

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
)

// A cluster is two replicas and their database, and the sink that their agents use.
// Clients and sink are at the front network, the database at that of the data.
type cluster struct {
	front, data net
	db          string
	sink        *sink
	a, b        replica
	token       string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	needEngine(t)
	c := &cluster{front: newNet(t), data: newNet(t, network.WithInternal())}
	c.db = startPostgres(t, c.data)
	c.sink = startSink(t, c.front)
	s := c.sink.site(t)
	start := func() replica {
		return startReplica(t, s, c.front, volume(t),
			network.WithNetwork(nil, c.data.DockerNetwork),
			testcontainers.WithEnv(map[string]string{
				"RELAVIUM_DATABASE_URL":      "postgres://relavium:stand-in-password@db:5432/relavium?sslmode=disable",
				"RELAVIUM_ANTHROPIC_API_KEY": "stand-in-key",
			}))
	}
	c.a = start()
	c.b = start()
	c.token = c.a.token(t)
	c.a.ready(t)
	c.b.ready(t)
	return c
}

// A load is calls under way.
type load struct {
	calls []*call
	done  chan struct{} // closed when all have their result or the test's patience ended

	mu  sync.Mutex
	err []error
}

// begin makes n calls of a workflow at once, half of them first at a, half at b.
func (c *cluster) begin(t *testing.T, workflow string, n int, limit time.Duration) *load {
	t.Helper()
	l := &load{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	var all sync.WaitGroup
	for i := range n {
		one := &call{workflow: workflow, key: fmt.Sprintf("%s-%d", workflow, i), input: fmt.Sprintf("%s-%d", workflow, i), token: c.token}
		l.calls = append(l.calls, one)
		replicas := []replica{c.a, c.b}
		if i%2 == 1 {
			replicas = []replica{c.b, c.a}
		}
		all.Go(func() {
			if err := one.make(ctx, t, replicas...); err != nil {
				l.mu.Lock()
				l.err = append(l.err, err)
				l.mu.Unlock()
			}
		})
	}
	go func() {
		all.Wait()
		close(l.done)
	}()
	return l
}

// settle answers, by a replica that lives, the gates that ask whether an effect under
// way when something was killed took place, as the sink's journal has it, until all
// calls are done. It returns how many asked.
func (c *cluster) settle(t *testing.T, by replica, l *load) int {
	t.Helper()
	asked := map[string]bool{}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, err := range l.err {
				t.Error(err)
			}
			return len(asked)
		case <-tick.C:
		}
		out, err := by.cli(t, "gate", "list", "--json")
		if err != nil {
			t.Logf("gate list: %v", err)
			continue
		}
		for _, g := range parseGates(t, out) {
			if g.Reason != "outcome_unknown" || asked[g.ID] {
				continue
			}
			label := noted.FindString(g.Message)
			if label == "" {
				t.Fatalf("a gate does not name the note in question: %s", g.Message)
			}
			value := "repeat"
			if c.sink.count(label) > 0 {
				value = "skip"
			}
			if _, err := by.cli(t, "gate", "answer", g.Run, "--gate", g.ID, "--value", value, "--yes"); err != nil {
				t.Logf("gate answer: %v", err)
				continue
			}
			asked[g.ID] = true
		}
	}
}

var noted = regexp.MustCompile(`errand-\d+/\d`)

// check tells whether every errand came to its end and left each note once.
func (c *cluster) check(t *testing.T, l *load) {
	t.Helper()
	for _, one := range l.calls {
		if one.failed || !strings.Contains(one.result, "noted "+one.input+"/2") {
			t.Errorf("%s: the result is %.200q (error %t), want that it is noted", one.key, one.result, one.failed)
		}
		for _, note := range []string{one.input + "/1", one.input + "/2"} {
			if n := c.sink.count(note); n != 1 {
				t.Errorf("note %s was left %d times, want once", note, n)
			}
		}
	}
}

// approve approves the gates of a workflow by a replica and returns the longest time
// that it took.
func (c *cluster) approve(t *testing.T, by replica, workflow string, want int) (longest time.Duration) {
	t.Helper()
	n := 0
	for _, g := range by.gates(t) {
		if g.Workflow != workflow {
			continue
		}
		n++
		began := time.Now()
		by.ok(t, "gate", "approve", g.Run, "--yes")
		longest = max(longest, time.Since(began))
	}
	if n != want {
		t.Errorf("%d gates of %s are open, want %d", n, workflow, want)
	}
	return longest
}

func (c *cluster) waiting(t *testing.T, by replica, workflow string) int {
	t.Helper()
	n := 0
	for _, g := range by.gates(t) {
		if g.Workflow == workflow {
			n++
		}
	}
	return n
}

const errands, gates = 40, 6

// TestContainersReplicaKilled kills one of two replicas under load. Every run ends on the
// other, no note is left twice, and the gates of both replicas' runs can be answered
// from the first moment on.
func TestContainersReplicaKilled(t *testing.T) {
	c := startCluster(t)
	parked := c.begin(t, "asking", gates, 4*time.Minute)
	until(t, patience, "all gates are open", func() bool { return c.waiting(t, c.b, "asking") == gates })
	l := c.begin(t, "errand", errands, 4*time.Minute)
	until(t, patience, "a third of the notes is left", func() bool { return c.sink.count("") >= errands*2/3 })
	kill(t, c.a.id)
	killed := time.Now()
	longest := c.approve(t, c.b, "asking", gates)
	asked := c.settle(t, c.b, l)
	t.Logf("all errands ended %v after the kill; %d asked about an effect; a gate was answered within %v", time.Since(killed), asked, longest)
	c.check(t, l)
	<-parked.done
	for _, one := range parked.calls {
		if one.failed || !strings.Contains(one.result, one.input+", approved") {
			t.Errorf("%s: the result is %.200q, want that it was approved", one.key, one.result)
		}
	}
	for _, r := range c.b.runs(t) {
		if r.State != "completed" {
			t.Errorf("run %s is %s (%s), want completed", r.ID, r.State, r.Reason)
		}
	}
}

// TestContainersDatabaseCrash kills PostgreSQL under load and starts it again, first at
// once, then when the replicas have given up on it. Both go on by themselves and nothing
// is lost.
func TestContainersDatabaseCrash(t *testing.T) {
	c := startCluster(t)
	parked := c.begin(t, "asking", gates, 4*time.Minute)
	until(t, patience, "all gates are open", func() bool { return c.waiting(t, c.b, "asking") == gates })
	l := c.begin(t, "errand", errands, 4*time.Minute)
	until(t, patience, "a quarter of the notes is left", func() bool { return c.sink.count("") >= errands/2 })
	kill(t, c.db)
	docker(t, "start", c.db)
	c.a.ready(t)
	c.b.ready(t)
	left := c.sink.count("")
	until(t, patience, "it goes on", func() bool { return c.sink.count("") >= min(left+4, 2*errands) })
	kill(t, c.db)
	until(t, takeover, "neither replica is ready", func() bool {
		return c.a.get(t, "/readyz") == http.StatusServiceUnavailable && c.b.get(t, "/readyz") == http.StatusServiceUnavailable
	})
	docker(t, "start", c.db)
	began := time.Now()
	c.a.ready(t)
	c.b.ready(t)
	t.Logf("both replicas are ready %v after the start of the database", time.Since(began))
	asked := c.settle(t, c.a, l)
	t.Logf("all errands ended %v after it; %d asked about an effect", time.Since(began), asked)
	c.check(t, l)
	c.approve(t, c.a, "asking", gates)
	<-parked.done
	for _, one := range parked.calls {
		if one.failed || !strings.Contains(one.result, one.input+", approved") {
			t.Errorf("%s: the result is %.200q, want that it was approved", one.key, one.result)
		}
	}
	if runs := c.a.runs(t); len(runs) != errands+gates {
		t.Errorf("there are %d runs, want %d", len(runs), errands+gates)
	}
}

// TestContainersPartition cuts one replica off from the database while its run waits for
// a slow effect that must not be made twice. It says that it is not ready and lets go;
// the other one takes the run and asks what became of the effect. Healed, the first one
// serves again, and the effect was asked for once.
func TestContainersPartition(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	release := c.sink.holding()
	defer release()
	one := &call{workflow: "errand", key: "errand-0", input: "errand-0", token: c.token}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	l := &load{calls: []*call{one}, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		if err := one.make(ctx, t, c.a, c.b); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.err = append(l.err, err)
		}
	}()
	until(t, patience, "the effect is under way", func() bool { return c.sink.count("errand-0/1") == 1 })

	docker(t, "network", "disconnect", c.data.Name, c.a.id)
	cut := time.Now()
	until(t, takeover, "the replica without its database is not ready", func() bool { return c.a.get(t, "/readyz") == http.StatusServiceUnavailable })
	t.Logf("not ready %v after the cut", time.Since(cut))
	if status := c.a.get(t, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz of the replica that was cut off = %d, want 200: starting it again would not help", status)
	}
	until(t, takeover, "the other replica asks about the effect", func() bool { return c.waiting(t, c.b, "errand") == 1 })
	t.Logf("the other replica asked %v after the cut", time.Since(cut))
	docker(t, "network", "connect", c.data.Name, c.a.id)
	healed := time.Now()
	c.a.ready(t)
	t.Logf("ready again %v after it was healed", time.Since(healed))
	release()
	if n := c.sink.count("errand-0/1"); n != 1 {
		t.Errorf("the effect was asked for %d times, want once", n)
	}
	if asked := c.settle(t, c.a, l); asked != 1 {
		t.Errorf("%d gates asked about an effect, want 1", asked)
	}
	c.check(t, l)
}

// TestContainersReplicaStopped stops one of two replicas under load for longer than its
// lease, as a machine that hangs does, and lets it go on: what it ran is the other's by
// then. It sends nothing that may not be repeated, comes back by itself, and the calls
// that waited at it get their results.
func TestContainersReplicaStopped(t *testing.T) {
	c := startCluster(t)
	l := c.begin(t, "errand", errands, 4*time.Minute)
	until(t, patience, "a third of the notes is left", func() bool { return c.sink.count("") >= errands*2/3 })
	docker(t, "pause", c.a.id)
	stopped := time.Now()
	until(t, takeover, "its lease is over and the other has looked", func() bool { return time.Since(stopped) > 15*time.Second })
	docker(t, "unpause", c.a.id)
	going := time.Now()
	asked := c.settle(t, c.b, l)
	t.Logf("all errands ended %v after it went on; %d asked about an effect", time.Since(going), asked)
	c.check(t, l)
	c.a.ready(t)
	for _, r := range c.b.runs(t) {
		if r.State != "completed" {
			t.Errorf("run %s is %s (%s), want completed", r.ID, r.State, r.Reason)
		}
	}
}
