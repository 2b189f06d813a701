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

// followedAfter is the time after which files that nothing reads again are reported.
const followedAfter = time.Minute

// FilesOptions are the optional settings of [Files]. The zero value is the documented default.
type FilesOptions struct {
	// Poll is the interval at which [Files.Start] reads the files. Default: 5 s.
	Poll time.Duration
	// Hooks are called on changes.
	Hooks FilesHooks
	// Logger gets a line for each new generation, for each distinct failure, and for the PEM blocks
	// of a generation that are not used. Default: discarded.
	Logger *slog.Logger
}

// FilesHooks are optional callbacks. They must return immediately and must not call [Files.Reload].
type FilesHooks struct {
	// Reloaded is called when a new generation is in use.
	Reloaded func(Generation)
	// Refused is called once for each distinct failure. The last valid generation stays in use. The
	// problems [ProblemExpired] and [ProblemNotYetValid] may also concern the generation in use.
	Refused func(Refusal)
}

// Generation describes loaded key material. Hooks receive it. A later version may add fields.
type Generation struct {
	// NotBefore and NotAfter are the validity of the certificate. They are zero without a
	// certificate.
	NotBefore, NotAfter time.Time
}

// Refusal describes rejected key material. Hooks receive it. A later version may add fields.
type Refusal struct {
	// Problem is the result of [ProblemOf] for the error.
	Problem Problem
}

func (o FilesOptions) withDefaults() FilesOptions {
	return option.WithDefaults(o, FilesOptions{
		Poll:   defaultPoll,
		Hooks:  FilesHooks{Reloaded: func(Generation) {}, Refused: func(Refusal) {}},
		Logger: slog.New(slog.DiscardHandler),
	})
}

// Files is a [Source] that reads its files repeatedly while [Files.Start] runs. New key material is
// in use at most one [FilesOptions].Poll after its files changed. Broken files never replace valid
// material. All methods are safe for concurrent use.
type Files struct {
	paths Paths
	opts  FilesOptions

	// current is replaced as a whole, so that readers never see two generations.
	current atomic.Pointer[generation]
	made    time.Time
	// followed means that Start or Reload was called, or that the log says that neither was.
	followed atomic.Bool

	mu sync.Mutex // held while reading
	// refused is the failure that was reported last, nil after a success.
	refused *generation
}

var _ Source = (*Files)(nil)

type generation struct {
	Status

	files snapshot
}

// NewFiles reads the files once. If a file is broken, the error names the file and has a [Problem].
// Certificates that are not valid yet are used nevertheless, and [Files.Status] returns the
// problem, because the clock of this machine may be wrong and there is no better clock.
func NewFiles(paths Paths, opts FilesOptions) (*Files, error) {
	opts = opts.withDefaults()
	if err := errors.Join(paths.validate(), option.NoneNegative(opts)); err != nil {
		return nil, err
	}

	files, err := paths.readStable(snapshot{})
	if err != nil {
		return nil, err
	}

	first, problem := newGeneration(paths, files, time.Now())
	err = problem
	for from := validFrom(err); !from.IsZero(); from = validFrom(err) { // Each is later than the one before.
		first, err = newGeneration(paths, files, from)
	}

	if err != nil {
		return nil, err
	}

	first.Err = problem

	f := &Files{paths: paths, opts: opts, made: time.Now()}
	f.logSkipped(first)
	f.current.Store(first)

	return f, nil
}

func newGeneration(paths Paths, files snapshot, now time.Time) (*generation, error) {
	material, err := parse(paths, files, now)
	if err != nil {
		return nil, err
	}
	return &generation{Status{Material: material, Loaded: time.Now()}, files}, nil
}

// Material implements [Source]. It returns the last valid generation. The error is always nil,
// because [NewFiles] fails without valid material. If neither Start nor Reload is called within a
// minute after NewFiles, a line is logged.
func (f *Files) Material() (*Material, error) {
	if !f.followed.Load() && time.Since(f.made) > followedAfter && f.followed.CompareAndSwap(false, true) {
		f.opts.Logger.Warn("the key files are in use but are not read again, so a renewed certificate is never used: "+
			"call Start, or pass the files to mgr.Add", slog.String("certificate", f.paths.Certificate))
	}
	return f.Status().Material, nil
}

// Status is the state of key material in files.
type Status struct {
	// Material is the generation in use.
	Material *Material
	// Loaded is the time at which the generation was read.
	Loaded time.Time
	// Err says why the current files are not in use, or that they are in use although they are not
	// valid. It is nil if the files are in use and valid.
	Err error
}

// Status returns the material in use and the problem of the current files.
func (f *Files) Status() Status { return f.current.Load().Status }

// NeedLeaderElection returns false, so that a manager of controller-runtime calls Start on every
// replica and a standby never serves an old certificate.
func (*Files) NeedLeaderElection() bool { return false }

// Start reads the files at the interval [FilesOptions].Poll until ctx ends, and then returns nil.
// Without Start, only Reload reads the material again. AddListener of package
// adapters/controllerruntime runs Start for the Files that it gets. A second call of Start only
// reads the files more often.
func (f *Files) Start(ctx context.Context) error {
	reload := func() { _ = f.Reload() } // It reports its error itself, and Status has it.
	reload()
	periodic.Call(ctx, f.opts.Poll, reload)

	return nil
}

// Reload reads the files now. It returns an error if it kept the last valid generation, or if the
// generation in use is not valid.
func (f *Files) Reload() error {
	f.followed.Store(true)
	f.mu.Lock()
	defer f.mu.Unlock()

	old := f.current.Load()

	files, err := f.paths.readStable(old.files)
	if err != nil {
		return f.refuseFiles(files, err)
	}
	if files.equal(old.files) {
		return f.confirmUsed(old)
	}

	next, err := newGeneration(f.paths, files, time.Now())
	if err != nil {
		return f.refuseFiles(files, err)
	}

	f.useGeneration(next)
	return nil
}

// confirmUsed confirms the generation in use, which equals the files, unless it is not valid.
func (f *Files) confirmUsed(old *generation) error {
	if err := old.Material.checkValidity(f.paths, time.Now()); err != nil {
		return f.refuseFiles(old.files, err)
	}
	if old.Err == nil {
		return nil
	}

	// A later failure is reported again.
	f.refused = nil
	f.current.Store(&generation{Status{Material: old.Material, Loaded: old.Loaded}, old.files})
	f.opts.Logger.Info("key material on disk is valid again and equals the material in use",
		slog.String("fingerprint", old.Material.Fingerprint))

	return nil
}

func (f *Files) useGeneration(next *generation) {
	f.refused = nil
	f.current.Store(next)
	f.opts.Logger.Info("key material reloaded",
		slog.String("fingerprint", next.Material.Fingerprint),
		slog.Any("ca_fingerprints", next.Material.RootFingerprints),
		slog.Time("not_after", next.Material.NotAfter))
	f.logSkipped(next)
	f.opts.Hooks.Reloaded(Generation{NotBefore: next.Material.NotBefore, NotAfter: next.Material.NotAfter})
}

func (f *Files) logSkipped(next *generation) {
	if len(next.Material.Skipped) > 0 {
		f.opts.Logger.Warn("the key material contains unused PEM blocks", slog.Any("skipped", next.Material.Skipped))
	}
}

// refuseFiles stores the error for Status, and reports it unless the same files failed in the same
// way.
func (f *Files) refuseFiles(files snapshot, err error) error {
	old := *f.current.Load()
	old.Err = err
	f.current.Store(&old)
	if f.refused != nil && f.refused.Err.Error() == err.Error() && f.refused.files.equal(files) {
		return err
	}

	f.refused = &generation{Status{Err: err}, files}
	attrs := []any{
		slog.Any("error", err), slog.String("fingerprint", old.Material.Fingerprint),
		slog.Time("not_after", old.Material.NotAfter),
	}

	if files.equal(old.files) {
		f.opts.Logger.Error("the key material in use is not valid", attrs...)
	} else {
		f.opts.Logger.Warn("key material on disk is broken: the last good key material stays in use", attrs...)
	}

	f.opts.Hooks.Refused(Refusal{Problem: ProblemOf(err)})
	return err
}
