package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long files have to stay as they are before they are read,
	// and maxSettle how long they may not.
	settleTime = 200 * time.Millisecond
	maxSettle  = 2 * time.Second

	// pollTime is between looks at files of which no event told.
	pollTime = 3 * time.Second

	maxWatched = 512     // folders
	maxLooked  = 200_000 // entries of them
)

// A look is what the files that a server is started from are like.
type look struct {
	sum     [sha256.Size]byte
	folders []string
	files   []string // outside the folders
}

// lookAt looks at the workflow and agent files of the project and the given
// folders, and at the configuration. What cannot be read is passed over.
func (a *app) lookAt(at *site, folders []string) look {
	var l look
	sum := sha256.New()
	if sources, err := at.sources(folders); err == nil {
		for i := range sources {
			l.folder(sum, sources[i].Dir, at.home)
		}
	}
	config := filepath.Join(at.home, "config.toml")
	if a.config != "" {
		config = a.config
	}
	l.files = append(l.files, config)
	l.file(sum, config)
	sum.Sum(l.sum[:0])
	return l
}

func (l *look) folder(sum hash.Hash, dir, home string) {
	n := 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if n++; n > maxLooked {
			return fs.SkipAll
		}
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read is passed over
		case !d.IsDir():
			if followed(path) {
				l.file(sum, path)
			}
			return nil
		case path != dir && (d.Name() == ".git" || d.Name() == "node_modules" || path == home):
			return fs.SkipDir
		}
		if len(l.folders) < maxWatched {
			l.folders = append(l.folders, path)
		}
		return nil
	})
}

// file takes in what tells two versions of a file apart.
func (l *look) file(sum hash.Hash, path string) {
	about, err := os.Stat(path)
	if err != nil {
		return
	}
	_, _ = sum.Write([]byte(path))
	for _, n := range []int64{0, about.Size(), about.ModTime().UnixNano(), int64(about.Mode())} {
		_, _ = sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) //nolint:gosec // a bit pattern
	}
}

// followed reports whether a file may matter, by its name.
func followed(path string) bool {
	ext := filepath.Ext(path)
	return ext == ".yaml" || ext == ".toml"
}

// follow reloads whenever files are other than at the look before, until ctx ends.
func (r *reloader) follow(ctx context.Context, before look) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil { // looks alone find changes too, only later
		r.start.log.DebugContext(ctx, "files are not watched", "error", err)
		watcher = &fsnotify.Watcher{}
	} else {
		defer func() { _ = watcher.Close() }()
	}
	watch := func(l *look) {
		if err != nil {
			return
		}
		for _, path := range append(l.folders, l.files...) {
			_ = watcher.Add(path) // one that cannot be watched is looked at
		}
	}
	watch(&before)
	poll, settle := time.NewTicker(pollTime), time.NewTimer(0) // what changed since the look before
	defer poll.Stop()
	defer settle.Stop()
	var since time.Time // when the first of the changes was that are not read
	changed := func() {
		if since.IsZero() {
			since = time.Now()
		}
		settle.Reset(min(settleTime, max(maxSettle-time.Since(since), 0)))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case ev := <-watcher.Events:
			if followed(ev.Name) || filepath.Ext(ev.Name) == "" { // a folder, most likely
				changed()
			}
		case lost := <-watcher.Errors:
			r.start.log.DebugContext(ctx, "events of files are lost", "error", lost)
			changed()
		case <-poll.C:
			if now := r.app.lookAt(r.start, r.flags.folders); since.IsZero() && now.sum != before.sum {
				changed()
			}
		case <-settle.C:
			since = time.Time{}
			now := r.app.lookAt(r.start, r.flags.folders)
			watch(&now)
			if now.sum == before.sum {
				continue
			}
			before = now
			r.reload(ctx)
		}
	}
}
