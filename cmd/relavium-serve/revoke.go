package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
)

func (a *app) consentRevokeCommand() *cobra.Command {
	var now, asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke DIGEST",
		Short: "Take a grant back: the next start of the server is refused",
		Long: `Take a grant back: the next start of the server is refused.

What runs already goes on until its run ends. With --now it is closed within a
second or so, in every process of this home, also where it was not granted but
allowed by --allow-mcp-stdio; calls that are under way fail.`,
		Example: "  relavium-serve consent revoke DIGEST\n  relavium-serve consent revoke --now DIGEST",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.checkDigest(args[0]); err != nil {
				return err
			}
			return a.revoke(cmd.Context(), args[0], now, asJSON)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "close what runs under the digest, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the revoked digest as one JSON object")
	return cmd
}

func (a *app) revoke(ctx context.Context, digest string, now, asJSON bool) error {
	at, store, err := a.consents()
	if err != nil {
		return err
	}
	if err := makeHome(at.place); err != nil {
		return err
	}
	err = store.Revoke(ctx, digest)
	if _, broken := errors.AsType[*consent.FoldError](err); broken {
		_, _ = fmt.Fprintf(a.stderr, "the revocation of %s is recorded\n", digest)
	}
	if _, absent := errors.AsType[*consent.NotGrantedError](err); absent && now {
		err = nil // what runs may have been granted once, or allowed
	}
	if now {
		if marked := markRevoked(at.home, digest); marked != nil {
			return errors.Join(err, marked)
		}
	}
	if err != nil {
		return consentFault(err)
	}
	what := "%s is revoked"
	if now {
		what += ", and what runs under it is being closed"
	}
	return a.said(asJSON, map[string]string{"revokes": digest}, what, digest)
}

// revokedFolder is the folder of the home that holds a mark for each digest that was
// revoked with --now: an empty file of the digest's name, as old as the revocation.
const revokedFolder = "revoked"

// revocationSlack is how much later than its revocation a process may seem to have begun
// that was granted just before.
const revocationSlack = 2 * time.Second

func revokedMark(digest string) string {
	return filepath.Join(revokedFolder, strings.TrimPrefix(digest, "v1:"))
}

// markRevoked leaves a mark for the processes of this home.
func markRevoked(home, digest string) error {
	root, err := os.OpenRoot(home)
	if err != nil {
		return homeFault("cannot be opened")
	}
	defer func() { _ = root.Close() }()
	if err := root.Mkdir(revokedFolder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("marking the revocation: %w", err)
	}
	name := revokedMark(digest)
	file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("marking the revocation: %w", err)
	}
	now := time.Now()
	if err := errors.Join(file.Close(), root.Chtimes(name, now, now)); err != nil {
		return fmt.Errorf("marking the revocation: %w", err)
	}
	return nil
}

// revocations closes in this process what another one revoked with --now.
type revocations struct {
	home     string
	granted  func(ctx context.Context, digest string) error
	allowed  []string // digests that need no grant in this process
	children *child.Table
	host     *inbound.Host
	log      *slog.Logger

	told map[string]time.Time // what was said to be closed, by digest: its begin
}

// watch looks for marks once in a while until stop is called, which returns when it has
// ended.
func (r *revocations) watch(ctx context.Context, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.look(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// look closes what was revoked. It reads no file while nothing runs.
func (r *revocations) look(ctx context.Context) {
	oldest := make(map[string]time.Time)
	for _, p := range r.children.Living() {
		if _, seen := oldest[p.Label]; !seen && consent.IsDigest(p.Label) {
			oldest[p.Label] = p.Began
		}
	}
	var wg sync.WaitGroup
	for digest, began := range oldest {
		if !r.revoked(ctx, digest, began) {
			continue
		}
		if !r.told[digest].Equal(began) {
			r.told[digest] = began
			r.log.WarnContext(ctx, "consent was taken back: what runs under it is closed", "digest", digest)
		}
		wg.Go(func() {
			// Sessions are told why; the table has those as well that are no session yet.
			err := errors.Join(r.host.CloseDigest(ctx, digest), r.children.CloseLabel(ctx, digest))
			if err != nil && ctx.Err() == nil {
				r.log.WarnContext(ctx, "what was revoked did not end as it should", "digest", digest, "error", err)
			}
		})
	}
	wg.Wait()
}

// revoked tells whether a process that began then runs under a digest that was revoked
// since.
func (r *revocations) revoked(ctx context.Context, digest string, began time.Time) bool {
	mark, err := os.Lstat(filepath.Join(r.home, revokedMark(digest)))
	if err != nil || !mark.Mode().IsRegular() {
		return false
	}
	if slices.Contains(r.allowed, digest) {
		return mark.ModTime().After(began)
	}
	return mark.ModTime().Add(revocationSlack).After(began) && r.granted(ctx, digest) != nil
}
