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
		Reloaded: func(_, notAfter time.Time) { f.reloaded <- notAfter },
		Refused:  func(problem string) { f.refused <- problem },
	}
	opts.Logger = slog.New(slog.NewTextHandler(f.log, nil))
	files, err := keys.NewFiles(f.paths(), opts)
	if err != nil {
		t.Fatal(err)
	}
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

func TestFilesKeepLastGood(t *testing.T) {
	t.Parallel()
	past, future := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		problem string
		spoil   func(ca *testpki.CA, files map[string][]byte)
	}{
		"half-written certificate": {"malformed", func(_ *testpki.CA, files map[string][]byte) {
			files["tls.crt"] = files["tls.crt"][:100]
		}},
		"half-written key": {"malformed", func(_ *testpki.CA, files map[string][]byte) {
			files["tls.key"] = files["tls.key"][:100]
		}},
		"half-written CA": {"malformed", func(_ *testpki.CA, files map[string][]byte) {
			files["ca.crt"] = files["ca.crt"][:100]
		}},
		"empty": {"empty", func(_ *testpki.CA, files map[string][]byte) { files["ca.crt"] = nil }},
		"missing": {"unreadable", func(_ *testpki.CA, files map[string][]byte) {
			delete(files, "tls.key")
		}},
		"huge": {"unreadable", func(_ *testpki.CA, files map[string][]byte) {
			files["ca.crt"] = bytes.Repeat([]byte("x"), 2<<20)
		}},
		"key of another": {"mismatch", func(ca *testpki.CA, files map[string][]byte) {
			files["tls.key"] = must(ca.Client("other", testpki.Options{})).KeyPEM
		}},
		"expired": {"expired", func(ca *testpki.CA, files map[string][]byte) {
			leaf := must(ca.Client(runtime1, testpki.Options{NotAfter: past}))
			files["tls.crt"], files["tls.key"] = leaf.CertPEM, leaf.KeyPEM
		}},
		"not yet valid": {"not_yet_valid", func(ca *testpki.CA, files map[string][]byte) {
			leaf := must(ca.Client(runtime1, testpki.Options{NotBefore: future}))
			files["tls.crt"], files["tls.key"] = leaf.CertPEM, leaf.KeyPEM
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, keys.FilesOptions{})
			good := must(f.Material())
			content := testpki.Files(must(f.ca.Client(runtime1, testpki.Options{})), f.ca)
			tc.spoil(f.ca, content)
			f.write(t, content)
			for range 3 {
				err := f.Reload()
				if err == nil || keys.Problem(err) != tc.problem ||
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

// An expired certificate is broken in the same way at each reading.
func TestFilesReportExpiryOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, keys.FilesOptions{})
		past := time.Now().Add(-time.Minute)
		f.write(t, testpki.Files(must(f.ca.Client(runtime1, testpki.Options{NotAfter: past})), f.ca))
		for range 3 {
			time.Sleep(time.Minute)
			if err := f.Reload(); err == nil {
				t.Error("expired, but in use")
			}
		}
		if n := len(f.refused); n != 1 {
			t.Errorf("reported %d times, want once", n)
		}
	})
}

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

// The certificate or the CA in use expires while its files stay as they are. There is nothing better
// to use, so it stays in use. The expiry is reported once, until new material is in use.
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
				if n := strings.Count(f.log.String(), "key material in use has expired"); n != 1 || len(f.refused) != 1 {
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
			leaf, changed := f.rotate(t), time.Now()
			receive(t, f.reloaded)
			if took := time.Since(changed); took > bound ||
				!must(f.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
				t.Errorf("in use after %v, want at most %v", took, bound)
			}
		}
	})
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

func TestFilesFollowVolume(t *testing.T) {
	t.Parallel()
	f := newFixture(t, keys.FilesOptions{Poll: 10 * time.Millisecond})
	start(t, f.Start)
	for range 3 {
		leaf := f.rotate(t)
		receive(t, f.reloaded)
		if !must(f.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
			t.Error("the material is not the new one")
		}
	}
	f.write(t, map[string][]byte{"ca.crt": []byte("broken")})
	if problem := receive(t, f.refused); problem == "" {
		t.Error("want a problem")
	}
}

// TestFilesFollowPlainFiles writes one file after the other, each in a directory of its own.
func TestFilesFollowPlainFiles(t *testing.T) {
	t.Parallel()
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	paths := keys.Paths{
		CA:          filepath.Join(t.TempDir(), "bundle.pem"),
		Certificate: filepath.Join(t.TempDir(), "cert.pem"),
		Key:         filepath.Join(t.TempDir(), "key.pem"),
	}
	write := func() *testpki.Leaf {
		leaf := must(ca.Client(runtime1, testpki.Options{}))
		for path, content := range map[string][]byte{
			paths.CA: ca.PEM, paths.Certificate: leaf.CertPEM, paths.Key: leaf.KeyPEM,
		} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return leaf
	}
	write()
	reloaded := make(chan time.Time, 10)
	files := must(keys.NewFiles(paths, keys.FilesOptions{
		Poll: 10 * time.Millisecond, Hooks: keys.FilesHooks{Reloaded: func(_, at time.Time) { reloaded <- at }},
	}))
	start(t, files.Start)
	leaf := write()
	receive(t, reloaded)
	if !must(files.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
		t.Error("the material is not the new one")
	}
}

// TestFilesFollowReplacedDirectory replaces the directory itself.
func TestFilesFollowReplacedDirectory(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "tls")
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	fill := func(dir string) *testpki.Leaf {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		leaf := must(ca.Client(runtime1, testpki.Options{}))
		if err := testpki.NewVolume(dir).Write(testpki.Files(leaf, ca)); err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	fill(dir)
	caPath, certPath, keyPath := testpki.NewVolume(dir).Paths()
	reloaded := make(chan time.Time, 10)
	files := must(keys.NewFiles(keys.Paths{CA: caPath, Certificate: certPath, Key: keyPath},
		keys.FilesOptions{
			Poll: 20 * time.Millisecond, Hooks: keys.FilesHooks{Reloaded: func(_, at time.Time) { reloaded <- at }},
		}))
	start(t, files.Start)
	leaf := fill(filepath.Join(parent, "next"))
	old, next := filepath.Join(parent, "old"), filepath.Join(parent, "next")
	if err := errors.Join(os.Rename(dir, old), os.Rename(next, dir)); err != nil {
		t.Fatal(err)
	}
	receive(t, reloaded)
	if !must(files.Material()).Certificate.Leaf.Equal(leaf.TLS.Leaf) {
		t.Error("the material is not the new one")
	}
}

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
