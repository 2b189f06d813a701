package httpmtls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Paths say where key material is. The files may lie in different directories.
type Paths struct {
	// CA is the bundle of trusted CAs. Empty: none is needed.
	CA string
	// Certificate is the chain, leaf first, and Key its private key. Both empty: only the bundle is needed.
	Certificate, Key string
}

func (p Paths) validate() error {
	switch {
	case (p.Certificate == "") != (p.Key == ""):
		return fmt.Errorf("httpmtls: certificate %q and key %q: want both or none", p.Certificate, p.Key)
	case p.CA == "" && p.Certificate == "":
		return errors.New("httpmtls: no key material: want a CA bundle, or a certificate and its key, or all three")
	default:
		return nil
	}
}

// The defaults of [FilesOptions].
const (
	DefaultPoll  = 30 * time.Second
	DefaultQuiet = 100 * time.Millisecond
)

// FilesOptions are the optional settings of [Files]. The zero value is the documented default.
type FilesOptions struct {
	// Poll is how often the files are read although nothing was noticed: notification is unreliable on some file systems, and a
	// certificate can become valid without any change. Default [DefaultPoll].
	Poll time.Duration
	// Quiet is how long the files must be quiet after a change before they are read. Default [DefaultQuiet].
	Quiet time.Duration
	// Now is the clock that validity is checked by. Default [time.Now].
	Now func() time.Time
	// Hooks are called on changes.
	Hooks FilesHooks
	// Logger gets a line for each new generation and each distinct failure. Default: discarded.
	Logger *slog.Logger
}

// FilesHooks are optional callbacks. They must return at once, and must not call [Files.Reload].
type FilesHooks struct {
	// Reloaded is called when a new generation is in use, with the end of its certificate's validity; zero without one.
	Reloaded func(notAfter time.Time)
	// Refused is called once per distinct failure, with its Problem constant: the last good generation stays in use.
	Refused func(problem string)
}

func (o FilesOptions) withDefaults() FilesOptions {
	o.Poll = cmp.Or(o.Poll, DefaultPoll)
	o.Quiet = cmp.Or(o.Quiet, DefaultQuiet)

	if o.Now == nil {
		o.Now = time.Now
	}

	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	return o
}

func (o FilesOptions) validate() error {
	if o.Poll < 0 || o.Quiet < 0 {
		return fmt.Errorf("httpmtls: options Poll %v and Quiet %v: want more than 0", o.Poll, o.Quiet)
	}

	return nil
}

// Files is a [Source] that follows files while [Files.Start] runs. What is broken on disk never replaces what was sound. All
// methods are safe for concurrent use.
type Files struct {
	paths Paths
	opts  FilesOptions

	current atomic.Pointer[generation]

	mu      sync.Mutex // held while reading
	refused refusal
}

var _ Source = (*Files)(nil)

// generation is what is in use, and what is known of what is not.
type generation struct {
	material *Material
	files    snapshot
	loaded   time.Time
	err      error
}

// refusal identifies a failure, so that the same one is reported once.
type refusal struct {
	files   snapshot
	message string
}

// NewFiles reads the files once. Unlike later, broken ones are an error then: a [*MaterialError] that names the file and the
// problem.
func NewFiles(paths Paths, opts FilesOptions) (*Files, error) {
	opts = opts.withDefaults()
	if err := errors.Join(paths.validate(), opts.validate()); err != nil {
		return nil, err
	}

	f := &Files{paths: paths, opts: opts}

	files, err := paths.read()
	if err != nil {
		return nil, err
	}

	material, err := parse(paths, files, opts.Now())
	if err != nil {
		return nil, err
	}

	f.current.Store(&generation{material: material, files: files, loaded: opts.Now()})

	return f, nil
}

// Material returns the last good generation. It never fails.
func (f *Files) Material() (*Material, error) { return f.current.Load().material, nil }

// Status is what is known of key material in files.
type Status struct {
	// Material is the generation in use.
	Material *Material
	// Loaded is when it was read.
	Loaded time.Time
	// Err is why the files as they are now are not in use, and nil when they are.
	Err error
}

// Status returns what is in use, and what is wrong with the files, for readiness and heartbeat.
func (f *Files) Status() Status {
	g := f.current.Load()

	return Status{Material: g.material, Loaded: g.loaded, Err: g.err}
}

// Reload reads the files now. It returns the error for which it kept the last good generation.
func (f *Files) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()

	files, err := f.paths.read()
	if err != nil {
		return f.refuse(files, err)
	}

	old := f.current.Load()
	if files.equal(old.files) {
		f.accept(&generation{material: old.material, files: files, loaded: old.loaded})

		return nil
	}

	material, err := parse(f.paths, files, f.opts.Now())
	if err != nil {
		return f.refuse(files, err)
	}

	f.accept(&generation{material: material, files: files, loaded: f.opts.Now()})

	return nil
}

func (f *Files) accept(next *generation) {
	old := f.current.Swap(next)
	f.refused = refusal{}

	if old.material == next.material {
		if old.err != nil {
			f.opts.Logger.Info("key material on disk is again what is in use", slog.String("fingerprint", next.material.Fingerprint))
		}

		return
	}

	f.opts.Logger.Info("key material reloaded", slog.String("fingerprint", next.material.Fingerprint),
		slog.Any("ca_fingerprints", next.material.RootFingerprints), slog.Time("not_after", next.material.NotAfter))

	if f.opts.Hooks.Reloaded != nil {
		f.opts.Hooks.Reloaded(next.material.NotAfter)
	}
}

func (f *Files) refuse(files snapshot, err error) error {
	old := *f.current.Load()
	old.err = err
	f.current.Store(&old)

	if f.refused.message == err.Error() && f.refused.files.equal(files) {
		return err
	}

	f.refused = refusal{files: files, message: err.Error()}
	f.opts.Logger.Warn("key material on disk is broken, the last good one stays in use",
		slog.Any("error", err), slog.String("fingerprint", old.material.Fingerprint), slog.Time("not_after", old.material.NotAfter))

	if f.opts.Hooks.Refused != nil {
		f.opts.Hooks.Refused(problemOf(err))
	}

	return err
}

func problemOf(err error) string {
	if material, ok := errors.AsType[*MaterialError](err); ok {
		return material.Problem
	}

	return ProblemUnreadable
}

const (
	// maxFile bounds what is read of a file: no bundle is that large.
	maxFile = 1 << 20
	// readAttempts is how often the files are read anew when they change meanwhile.
	readAttempts = 5
)

var errChanging = errors.New("the files change while they are read, want two equal readings")

// read returns the content of the files at one moment.
func (p Paths) read() (snapshot, error) {
	files, err := settled(p.readOnce)
	if errors.Is(err, errChanging) {
		err = &MaterialError{File: cmp.Or(p.Certificate, p.CA), Problem: ProblemUnreadable, Err: err}
	}

	return files, err
}

// settled reads until two readings in a row are equal: there was no change between them, so that the files of two generations never
// mix.
func settled(read func() (snapshot, error)) (snapshot, error) {
	for range readAttempts {
		first, firstErr := read()
		second, secondErr := read()

		switch {
		case firstErr == nil && secondErr == nil && first.equal(second):
			return first, nil
		case firstErr != nil && secondErr != nil && firstErr.Error() == secondErr.Error():
			return snapshot{}, firstErr
		}
	}

	return snapshot{}, errChanging
}

func (p Paths) readOnce() (files snapshot, err error) {
	for _, file := range []struct {
		path string
		into *[]byte
	}{{p.CA, &files.ca}, {p.Certificate, &files.cert}, {p.Key, &files.key}} {
		if file.path == "" {
			continue
		}

		if *file.into, err = readFile(file.path); err != nil {
			return snapshot{}, &MaterialError{File: file.path, Problem: ProblemUnreadable, Err: err}
		}
	}

	return files, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err //nolint:wrapcheck // The caller names the file.
	}
	defer file.Close()

	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}

	return content, err //nolint:wrapcheck // The caller names the file.
}

// Start follows the files until ctx ends, and then returns nil. Where the system can not notify, it polls.
func (f *Files) Start(ctx context.Context) error {
	watch := f.watch()
	defer watch.close()

	poll := time.NewTicker(f.opts.Poll)
	defer poll.Stop()

	for {
		_ = f.Reload() // Reported by Reload itself, and kept in the status.

		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
			watch.renew()
		case <-watch.events:
			f.awaitQuiet(ctx, watch)
		case err := <-watch.errors:
			watch.report(err)
			f.awaitQuiet(ctx, watch)
		}
	}
}

// maxQuiets bounds the wait in a directory where something else never stops to change.
const maxQuiets = 10

// awaitQuiet returns when nothing has changed for a while: a rotation of several files is many notifications.
func (f *Files) awaitQuiet(ctx context.Context, watch *watch) {
	quiet := time.NewTimer(f.opts.Quiet)
	defer quiet.Stop()

	latest := time.NewTimer(maxQuiets * f.opts.Quiet)
	defer latest.Stop()

	for {
		select {
		case <-watch.events:
			quiet.Reset(f.opts.Quiet)
		case err := <-watch.errors:
			watch.report(err)
		case <-quiet.C:
			return
		case <-latest.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
