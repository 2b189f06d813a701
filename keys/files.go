package keys

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/periodic"
)

// defaultPoll is shorter than the period of a kubelet, which updates a volume about once a minute.
const defaultPoll = 5 * time.Second

// FilesOptions are the optional settings of [Files]. The zero value is the documented default.
type FilesOptions struct {
	// Poll is the time between two readings of the files while [Files.Start] runs. Default: 5 s.
	Poll time.Duration
	// Hooks are called on changes.
	Hooks FilesHooks
	// Logger gets a line for each new generation and each distinct failure. Default: discarded.
	Logger *slog.Logger
}

// FilesHooks are optional callbacks. They must return at once, and must not call [Files.Reload].
type FilesHooks struct {
	// Reloaded is called when a new generation is in use, with the validity of its certificate.
	// Without a certificate both are the zero time.
	Reloaded func(notBefore, notAfter time.Time)
	// Refused is called once per distinct failure with its [Problem]. The last
	// good generation stays in use. The problems "expired" and "not_yet_valid" may also be that of
	// the generation in use.
	Refused func(problem string)
}

// withDefaults returns a copy with all defaults set.
func (o FilesOptions) withDefaults() FilesOptions {
	return option.WithDefaults(o, FilesOptions{
		Poll:   defaultPoll,
		Hooks:  FilesHooks{Reloaded: func(_, _ time.Time) {}, Refused: func(string) {}},
		Logger: slog.New(slog.DiscardHandler),
	})
}

// Files is a [Source] that reads its files repeatedly while [Files.Start] runs. New key material is
// in use one [FilesOptions.Poll] after its files changed, at the latest. Broken files never replace
// valid material. All methods are safe for concurrent use.
type Files struct {
	paths Paths
	opts  FilesOptions

	// current is replaced as a whole, so that readers never see two generations.
	current atomic.Pointer[generation]

	mu sync.Mutex // held while reading
	// refused is the failure that was reported last.
	refused refusal
}

var _ Source = (*Files)(nil)

// generation is the material in use, and the state of the files behind it.
type generation struct {
	material *Material
	files    snapshot
	loaded   time.Time
	err      error
}

// refusal identifies a failure, so that it is reported once.
type refusal struct {
	files   snapshot
	message string
}

// NewFiles reads the files once. At this point broken files are an error with
// the file and the [Problem]. A certificate that is not valid yet is in use nevertheless, and
// [Files.Status] has the problem: the clock of this machine may be wrong, and there is no better one.
func NewFiles(paths Paths, opts FilesOptions) (*Files, error) {
	opts = opts.withDefaults()
	if err := errors.Join(paths.validate(), option.NoneNegative(opts)); err != nil {
		return nil, err
	}
	files, err := paths.read(snapshot{})
	if err != nil {
		return nil, err
	}
	first, err := newGeneration(paths, files, time.Now())
	for problem, from := err, validFrom(err); !from.IsZero(); from = validFrom(err) {
		if first, err = newGeneration(paths, files, from); err == nil {
			first.err = problem
		}
	}
	if err != nil {
		return nil, err
	}
	f := &Files{paths: paths, opts: opts}
	f.current.Store(first)
	return f, nil
}

// newGeneration parses files that must be valid at now.
func newGeneration(paths Paths, files snapshot, now time.Time) (*generation, error) {
	material, err := parse(paths, files, now)
	if err != nil {
		return nil, err
	}
	return &generation{material: material, files: files, loaded: time.Now()}, nil
}

// Material implements [Source]: the last good generation. Its error is always nil, because
// [NewFiles] fails without valid material.
func (f *Files) Material() (*Material, error) { return f.current.Load().material, nil }

// Status is the state of key material in files.
type Status struct {
	// Material is the generation in use.
	Material *Material
	// Loaded is the time at which it was read.
	Loaded time.Time
	// Err is the reason for which the present files are not in use, or that they are not valid in
	// use. It is nil when the files are in use and valid.
	Err error
}

// Status returns the material in use and the fault of the present files.
func (f *Files) Status() Status {
	g := f.current.Load()
	return Status{Material: g.material, Loaded: g.loaded, Err: g.err}
}

// NeedLeaderElection returns false. A manager of controller-runtime then calls Start on every
// replica, so that a standby never serves an old certificate.
func (*Files) NeedLeaderElection() bool { return false }

// Start reads the files every [FilesOptions.Poll] until ctx ends, and then returns nil.
func (f *Files) Start(ctx context.Context) error {
	reload := func() { _ = f.Reload() } // It reports its error itself, and Status has it.
	reload()
	periodic.Call(ctx, f.opts.Poll, reload)
	return nil
}

// Reload reads the files now. It returns the error for which it kept the last good generation, or
// that the generation in use is not valid.
func (f *Files) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()

	old := f.current.Load()

	files, err := f.paths.read(old.files)
	if err != nil {
		return f.refuse(files, err)
	}
	if files.equal(old.files) {
		return f.keep(old)
	}

	next, err := newGeneration(f.paths, files, time.Now())
	if err != nil {
		return f.refuse(files, err)
	}

	f.accept(next)
	return nil
}

// keep confirms the generation in use, which equals the files, unless it is not valid.
func (f *Files) keep(old *generation) error {
	if err := old.material.invalidity(f.paths, time.Now()); err != nil {
		return f.refuse(old.files, err)
	}
	if old.err == nil {
		return nil
	}

	// A later failure is reported again.
	f.refused = refusal{}
	f.current.Store(&generation{material: old.material, files: old.files, loaded: old.loaded})
	f.opts.Logger.Info("key material on disk equals the material in use again",
		slog.String("fingerprint", old.material.Fingerprint))
	return nil
}

// accept puts a new generation in use, and reports it.
func (f *Files) accept(next *generation) {
	f.refused = refusal{}
	f.current.Store(next)
	f.opts.Logger.Info("key material reloaded",
		slog.String("fingerprint", next.material.Fingerprint),
		slog.Any("ca_fingerprints", next.material.RootFingerprints),
		slog.Time("not_after", next.material.NotAfter))
	f.opts.Hooks.Reloaded(next.material.NotBefore, next.material.NotAfter)
}

// refuse stores the error for Status, and reports it unless the same files failed in the same way.
func (f *Files) refuse(files snapshot, err error) error {
	old := *f.current.Load()
	old.err = err
	f.current.Store(&old)
	if f.refused.message == err.Error() && f.refused.files.equal(files) {
		return err
	}
	f.refused = refusal{files: files, message: err.Error()}
	f.logRefused(&old, Problem(err) == problemExpired && files.equal(old.files))
	f.opts.Hooks.Refused(Problem(err))
	return err
}

// logRefused logs the failure of a generation.
func (f *Files) logRefused(g *generation, expiredInUse bool) {
	attrs := []any{
		slog.Any("error", g.err), slog.String("fingerprint", g.material.Fingerprint),
		slog.Time("not_after", g.material.NotAfter),
	}
	if expiredInUse {
		f.opts.Logger.Error("key material in use has expired: replace the files", attrs...)
	} else {
		f.opts.Logger.Warn("key material on disk is broken, the last good one stays in use", attrs...)
	}
}
