package keys_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// fixture has files in a secret volume, and the calls of the hooks.
type fixture struct {
	*keys.Files

	ca     *testpki.CA
	volume *testpki.Volume

	reloaded chan time.Time
	refused  chan string
	log      *syncBuffer
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newFixture(t *testing.T, opts keys.FilesOptions) *fixture {
	t.Helper()

	f := &fixture{
		ca: must(testpki.NewCA("ca", testpki.Options{})), volume: testpki.NewVolume(t.TempDir()),
		reloaded: make(chan time.Time, 1000), refused: make(chan string, 1000), log: &syncBuffer{},
	}
	f.rotate(t)
	opts.Hooks = keys.FilesHooks{
		Reloaded: func(g keys.Generation) { f.reloaded <- g.NotAfter },
		Refused:  func(r keys.Refusal) { f.refused <- string(r.Problem) },
	}
	opts.Logger = slog.New(slog.NewTextHandler(f.log, nil))
	files := must(keys.NewFiles(f.paths(), opts))
	f.Files = files

	return f
}

func (f *fixture) paths() keys.Paths {
	ca, cert, key := f.volume.Paths()
	return keys.Paths{CA: ca, Certificate: cert, Key: key}
}

// rotate writes a new leaf, and returns it.
func (f *fixture) rotate(t *testing.T) *testpki.Leaf {
	t.Helper()

	leaf := must(f.ca.Client(runtime1, testpki.Options{}))
	f.write(t, testpki.Files(leaf, f.ca))
	return leaf
}

func (f *fixture) write(t *testing.T, content map[string][]byte) {
	t.Helper()
	if err := f.volume.Write(content); err != nil {
		t.Fatal(err)
	}
}

// start follows the files until the test ends.
func start(t *testing.T, run func(context.Context) error) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()

	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start = %v, want nil", err)
		}
	})
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("nothing happened")
		panic("unreachable")
	}
}

// New files are in use after Reload, and only then. Unchanged files do not make a new generation.
func TestFilesReload(t *testing.T) {
	t.Parallel()

	f := newFixture(t, keys.FilesOptions{})
	first := must(f.Material())
	if err := f.Reload(); err != nil || must(f.Material()) != first || len(f.reloaded) != 0 {
		t.Errorf("nothing has changed, but Reload = %v, and the material may be another", err)
	}

	leaf := f.rotate(t)
	if must(f.Material()) != first {
		t.Error("new material before it was read")
	}
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}

	second := must(f.Material())
	if !second.Certificate.Leaf.Equal(leaf.TLS.Leaf) ||
		!receive(t, f.reloaded).Equal(leaf.TLS.Leaf.NotAfter) {
		t.Error("the material is not the new one, or was not reported")
	}

	if status := f.Status(); status.Material != second || status.Err != nil || status.Loaded.IsZero() {
		t.Errorf("status %+v, want the new material", status)
	}
}

// TestFilesKeepLastGood has one kind of broken material. TestNewMaterialRefuses has the others.
func TestFilesKeepLastGood(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		problem string
		spoil   func(files map[string][]byte)
	}{
		"half-written": {"malformed", func(files map[string][]byte) { files["tls.key"] = files["tls.key"][:100] }},
		"missing":      {"unreadable", func(files map[string][]byte) { delete(files, "tls.key") }},
		"huge":         {"unreadable", func(files map[string][]byte) { files["ca.crt"] = bytes.Repeat([]byte("x"), 2<<20) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, keys.FilesOptions{})
			good := must(f.Material())
			content := testpki.Files(must(f.ca.Client(runtime1, testpki.Options{})), f.ca)
			tc.spoil(content)
			f.write(t, content)

			for range 3 {
				err := f.Reload()
				if err == nil || string(keys.ProblemOf(err)) != tc.problem ||
					!strings.Contains(err.Error(), filepath.Dir(f.paths().CA)) {
					t.Fatalf("Reload = %v, want the file that is %s", err, tc.problem)
				}

				if status := f.Status(); status.Material != good || !errors.Is(status.Err, err) ||
					must(f.Material()) != good {
					t.Errorf("status %+v, want the last good material and the error", status)
				}
			}

			if got := receive(t, f.refused); got != tc.problem || len(f.refused) != 0 {
				t.Errorf("reported %s and %d more, want %s once", got, len(f.refused), tc.problem)
			}
			if n := strings.Count(f.log.String(), "WARN"); n != 1 || strings.Contains(f.log.String(), "PRIVATE") {
				t.Errorf("%d warnings, want one, without a key: %s", n, f.log)
			}

			leaf := f.rotate(t)
			if err := f.Reload(); err != nil || f.Status().Err != nil {
				t.Errorf("sound again: %v, %v", err, f.Status().Err)
			}
			if !must(f.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
				t.Error("the new sound material is not in use")
			}
		})
	}
}

func TestFilesReportDistinctFailuresOnceEach(t *testing.T) {
	t.Parallel()

	f := newFixture(t, keys.FilesOptions{})
	good := must(f.Material())
	sound := testpki.Files(must(f.ca.Client(runtime1, testpki.Options{})), f.ca)

	for _, broken := range []string{"one", "one", "two", ""} {
		sound["ca.crt"] = []byte(broken)
		f.write(t, sound)
		_ = f.Reload()
	}

	if n := len(f.refused); n != 3 {
		t.Errorf("%d failures reported, want 3 that differ", n)
	}
	if must(f.Material()) != good {
		t.Error("the last good material is gone")
	}
}

// Files that vanish and come back unchanged end the error and do not make a new generation.
func TestBrokenFilesAreRestored(t *testing.T) {
	t.Parallel()

	f := newFixture(t, keys.FilesOptions{})
	good := must(f.Material())
	content := map[string][]byte{}

	for _, path := range []string{f.paths().CA, f.paths().Certificate, f.paths().Key} {
		content[filepath.Base(path)] = must(os.ReadFile(path))
	}

	f.write(t, map[string][]byte{})
	if err := f.Reload(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Reload = %v, want that nothing is there", err)
	}

	f.write(t, content)
	if err := f.Reload(); err != nil || f.Status().Err != nil || must(f.Material()) != good || len(f.reloaded) != 0 {
		t.Errorf("Reload = %v with status %v, want the same material as before", err, f.Status().Err)
	}
}

// A certificate that is not valid yet does not replace a valid one, until it is valid itself.
func TestFilesBecomeValid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, keys.FilesOptions{})
		leaf := must(f.ca.Client(runtime1, testpki.Options{NotBefore: time.Now().Add(time.Hour)}))
		f.write(t, testpki.Files(leaf, f.ca))

		if err := f.Reload(); err == nil {
			t.Error("not yet valid, but in use")
		}

		time.Sleep(2 * time.Hour)
		if err := f.Reload(); err != nil || !must(f.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
			t.Errorf("Reload = %v, want that it is valid now", err)
		}
	})
}

// If the clock of a machine is behind the clock of the issuer, a new certificate is not valid yet.
// A process starts with it.
func TestFilesStartBeforeTheyAreValid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{time.Minute, -2 * time.Hour} { // The last one to be valid is the certificate, or the CA.
			expired := must(testpki.NewCA("old", testpki.Options{NotAfter: time.Now().Add(-time.Minute)}))
			early := testpki.Options{NotBefore: time.Now().Add(time.Hour)}
			ca := must(testpki.NewCA("ca", early))
			early.NotBefore = early.NotBefore.Add(after)
			f := &fixture{volume: testpki.NewVolume(t.TempDir()), log: &syncBuffer{}}
			f.write(t, testpki.Files(must(ca.Client(runtime1, early)), ca, expired))

			files, err := keys.NewFiles(f.paths(), keys.FilesOptions{Logger: slog.New(slog.NewTextHandler(f.log, nil))})
			if err != nil {
				t.Fatal(err)
			}

			for range 2 {
				if err := files.Status().Err; keys.ProblemOf(err) != "not_yet_valid" {
					t.Errorf("status %v, want that the material is not valid yet", err)
				}
				_ = files.Reload()
			}

			if log := f.log.String(); strings.Contains(log, "broken") || !strings.Contains(log, "the key material in use is not valid") {
				t.Errorf("log %s, want that the material in use is not valid", log)
			}

			time.Sleep(2 * time.Hour)
			if err := errors.Join(files.Reload(), files.Status().Err); err != nil {
				t.Errorf("status %v, want that the material is valid now", err)
			}
		}
	})
}

// The certificate or the CA in use expires while its files stay as they are. There is nothing
// better to use, so it stays in use. The expiry is reported once, until new material is in use.
func TestFilesReportMaterialThatExpiresInUse(t *testing.T) {
	t.Parallel()

	soon := func() testpki.Options { return testpki.Options{NotAfter: time.Now().Add(time.Hour)} }
	for name, issue := range map[string]func(*fixture) map[string][]byte{
		"certificate": func(f *fixture) map[string][]byte {
			return testpki.Files(must(f.ca.Client(runtime1, soon())), f.ca)
		},
		"CA": func(f *fixture) map[string][]byte {
			return testpki.Files(must(f.ca.Client(runtime1, testpki.Options{})), must(testpki.NewCA("old", soon())))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, keys.FilesOptions{})
				f.write(t, issue(f))
				if err := f.Reload(); err != nil {
					t.Fatal(err)
				}

				inUse := must(f.Material())
				for range 3 {
					time.Sleep(40 * time.Minute)
					_ = f.Reload()
				}

				if err := f.Status().Err; err == nil || !strings.Contains(err.Error(), "(expired)") || must(f.Material()) != inUse {
					t.Errorf("status %v, want that the material is expired, and stays in use", err)
				}
				if n := strings.Count(f.log.String(), "the key material in use is not valid"); n != 1 || len(f.refused) != 1 {
					t.Errorf("%d log lines and %d calls of the hook, want 1: %s", n, len(f.refused), f.log)
				}

				f.rotate(t)
				if err := f.Reload(); err != nil || f.Status().Err != nil {
					t.Errorf("after a rotation: %v, %v", err, f.Status().Err)
				}
			})
		})
	}
}

// By default, new material is in use 10 s after its files changed.
func TestFilesAreInUseWithin10Seconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const bound = 10 * time.Second
		f := newFixture(t, keys.FilesOptions{})
		start(t, f.Start)

		for _, pause := range []time.Duration{0, time.Millisecond, 4999 * time.Millisecond, time.Minute} {
			time.Sleep(pause)
			synctest.Wait()
			leaf := f.rotate(t)
			changed := time.Now()
			receive(t, f.reloaded)

			if took := time.Since(changed); took > bound ||
				!must(f.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
				t.Errorf("in use after %v, want at most %v", took, bound)
			}
		}
	})
}

// Files that nothing reads again are named once. Files that Start or Reload reads are not.
func TestFilesThatNothingReadsAgainAreNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		follow func(t *testing.T, f *fixture)
		lines  int
	}{
		"nothing": {func(*testing.T, *fixture) {}, 1},
		"Start":   {func(t *testing.T, f *fixture) { t.Helper(); start(t, f.Start) }, 0},
		"Reload":  {func(_ *testing.T, f *fixture) { _ = f.Reload() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, keys.FilesOptions{})
				tc.follow(t, f)

				for range 300 {
					must(f.Material())
					time.Sleep(time.Second)
				}

				synctest.Wait()
				if n := strings.Count(f.log.String(), "the key files are in use but are not read again"); n != tc.lines {
					t.Errorf("%d lines, want %d:\n%s", n, tc.lines, f.log)
				}
			})
		})
	}
}

// A manager of controller-runtime starts it on every replica. A standby must not serve an expired
// certificate.
func TestFilesNeedNoLeaderElection(t *testing.T) {
	t.Parallel()

	var files any = (*keys.Files)(nil)
	runnable, ok := files.(interface{ NeedLeaderElection() bool })
	if !ok || runnable.NeedLeaderElection() {
		t.Error("Files waits for leadership, want that it runs on every replica")
	}
}

// TestFilesFollow replaces files in each of the ways in which they are mounted, except for volumes,
// which all others have.
func TestFilesFollow(t *testing.T) {
	t.Parallel()

	ca := must(testpki.NewCA("ca", testpki.Options{}))
	inVolume := func(dir string) keys.Paths {
		ca, cert, key := testpki.NewVolume(dir).Paths()
		return keys.Paths{CA: ca, Certificate: cert, Key: key}
	}

	for name, mount := range map[string]func(dir string) (paths keys.Paths, write func(leaf *testpki.Leaf) error){
		"one plain file after the other": func(dir string) (keys.Paths, func(leaf *testpki.Leaf) error) {
			paths := keys.Paths{CA: filepath.Join(dir, "a.pem"), Certificate: filepath.Join(dir, "b.pem"), Key: filepath.Join(dir, "c.pem")}
			return paths, func(leaf *testpki.Leaf) error {
				return errors.Join(os.WriteFile(paths.CA, ca.PEM, 0o600), os.WriteFile(paths.Certificate, leaf.CertPEM, 0o600),
					os.WriteFile(paths.Key, leaf.KeyPEM, 0o600))
			}
		},
		"a directory that is replaced": func(parent string) (keys.Paths, func(leaf *testpki.Leaf) error) {
			dir := filepath.Join(parent, "tls")
			next := filepath.Join(parent, "next")
			old := filepath.Join(parent, "old")
			return inVolume(dir), func(leaf *testpki.Leaf) error {
				err := errors.Join(os.Mkdir(next, 0o700), testpki.NewVolume(next).Write(testpki.Files(leaf, ca)))
				_ = os.Rename(dir, old) // Nothing is there at first.
				return errors.Join(err, os.Rename(next, dir), os.RemoveAll(old))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			paths, write := mount(t.TempDir())
			rotate := func() *testpki.Leaf {
				leaf := must(ca.Client(runtime1, testpki.Options{}))
				if err := write(leaf); err != nil {
					t.Fatal(err)
				}
				return leaf
			}

			rotate()
			reloaded := make(chan time.Time, 10)
			refused := make(chan string, 1000)
			files := must(keys.NewFiles(paths, keys.FilesOptions{Poll: 10 * time.Millisecond, Hooks: keys.FilesHooks{
				Reloaded: func(g keys.Generation) { reloaded <- g.NotAfter },
				Refused:  func(r keys.Refusal) { refused <- string(r.Problem) },
			}}))
			start(t, files.Start)

			for range 3 {
				leaf := rotate()
				receive(t, reloaded)
				if !must(files.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
					t.Error("the material is not the new one")
				}
			}

			if err := os.RemoveAll(paths.CA); err != nil {
				t.Fatal(err)
			}

			problem := receive(t, refused)
			for problem != "unreadable" { // A file may be read between two that are replaced.
				problem = receive(t, refused)
			}
		})
	}
}

// The error names the file or the option. A CA bundle alone, or a certificate alone, is enough.
func TestNewFilesRefuses(t *testing.T) {
	t.Parallel()

	f := newFixture(t, keys.FilesOptions{})
	ca, cert, key := f.volume.Paths()
	missing := filepath.Join(t.TempDir(), "missing.crt")
	for name, tc := range map[string]struct {
		paths keys.Paths
		opts  keys.FilesOptions
		want  string
	}{
		"nothing": {keys.Paths{}, keys.FilesOptions{}, "no key material"},
		"no key":  {keys.Paths{CA: ca, Certificate: cert}, keys.FilesOptions{}, "want both or none"},
		"missing": {keys.Paths{CA: missing, Certificate: cert, Key: key}, keys.FilesOptions{}, missing},
		"mixed up": {
			keys.Paths{CA: ca, Certificate: key, Key: cert},
			keys.FilesOptions{},
			key + " (malformed)",
		},
		"directory":   {keys.Paths{CA: t.TempDir()}, keys.FilesOptions{}, "unreadable"},
		"option Poll": {keys.Paths{CA: ca}, keys.FilesOptions{Poll: -1}, "Poll"},
	} {
		if _, err := keys.NewFiles(tc.paths, tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: have %v, want an error with %q", name, err, tc.want)
		}
	}

	for _, paths := range []keys.Paths{{CA: ca}, {Certificate: cert, Key: key}} {
		if _, err := keys.NewFiles(paths, keys.FilesOptions{}); err != nil {
			t.Error(err)
		}
	}
}
