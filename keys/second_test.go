package keys_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// A failure that comes back after a success is reported again, also if it is the same.
func TestAFailureIsReportedAgainAfterASuccess(t *testing.T) {
	t.Parallel()
	for name, renewed := range map[string]bool{"the former files are back": false, "the files are new": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, keys.FilesOptions{})
			loaded := f.Status().Loaded
			sound := readAll(t, f)

			for round := range 3 {
				f.write(t, map[string][]byte{"ca.crt": []byte("broken")})
				_ = f.Reload()

				if n := len(f.refused); n != round+1 {
					t.Errorf("round %d: %d failures are reported, want %d", round, n, round+1)
				}

				if renewed {
					f.rotate(t)
				} else {
					f.write(t, sound)
				}

				if err := f.Reload(); err != nil {
					t.Fatal(err)
				}
			}

			if now := f.Status().Loaded; now.Equal(loaded) == renewed {
				t.Errorf("loaded at %s, and before at %s", now, loaded)
			}
		})
	}
}

func readAll(t *testing.T, f *fixture) map[string][]byte {
	t.Helper()

	content := map[string][]byte{}
	for _, path := range []string{f.paths().CA, f.paths().Certificate, f.paths().Key} {
		content[filepath.Base(path)] = must(os.ReadFile(path))
	}

	return content
}

// One of three files changes, and breaks the material.
func TestEachFileIsNoticedAlone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		f := newFixture(t, keys.FilesOptions{})
		content := readAll(t, f)
		content[name] = []byte("broken")
		f.write(t, content)
		if err := f.Reload(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Reload = %v, want an error of %s", err, name)
		}
	}
}

// The log names the blocks of each generation that are not used, and not those of the former one.
func TestEachGenerationNamesItsUnusedBlocks(t *testing.T) {
	t.Parallel()

	f := newFixture(t, keys.FilesOptions{})
	unused := func() int { return strings.Count(f.log.String(), "contains unused PEM blocks") }
	if n := unused(); n != 0 {
		t.Fatalf("control: %d lines about unused blocks, want none", n)
	}

	for n, extra := range [][]byte{foreignBlock(), nil} {
		content := testpki.Files(must(f.ca.Client(runtime1, testpki.Options{})), f.ca)
		content["ca.crt"] = append(content["ca.crt"], extra...)
		f.write(t, content)

		if err := f.Reload(); err != nil {
			t.Fatal(err)
		}
		if have := unused(); have != 1 {
			t.Errorf("generation %d: %d lines about unused blocks, want that of the first", n, have)
		}
	}
}

// foreignBlock is a PEM block of a type that no bundle uses.
func foreignBlock() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "SOMETHING ELSE", Bytes: []byte("x")})
}

// Bundle and chain both have a block that is not used.
func TestUnusedBlocksOfBothFiles(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	leaf := must(ends.ca.Client(runtime1, testpki.Options{}))
	m := must(keys.NewMaterial(append(foreignBlock(), ends.ca.PEM...), append(leaf.CertPEM, foreignBlock()...), leaf.KeyPEM))
	if all := strings.Join(m.Skipped, "\n"); len(m.Skipped) != 2 || !strings.Contains(all, "ca.crt") || !strings.Contains(all, "tls.crt") {
		t.Errorf("blocks that are not used: %q, want one of each file", m.Skipped)
	}
}

// Two CAs with different ends, in any order.
func TestTheLastOfTheCAsToExpire(t *testing.T) {
	t.Parallel()

	now := time.Now()
	short := must(testpki.NewCA("short", testpki.Options{NotAfter: now.Add(time.Hour)}))
	long := must(testpki.NewCA("long", testpki.Options{NotAfter: now.Add(48 * time.Hour)}))
	for _, bundle := range [][]byte{testpki.Bundle(short, long), testpki.Bundle(long, short)} {
		m := must(keys.NewMaterial(bundle, nil, nil))
		if left := m.RootsNotAfter.Sub(now); left < 47*time.Hour || left > 49*time.Hour {
			t.Errorf("the last CA expires in %v, want two days", left)
		}
	}
}

// No CA is valid. The one that will be decides, because an agent waits for it.
func TestAnEarlyCABesideAnExpiredOne(t *testing.T) {
	t.Parallel()

	early := must(testpki.NewCA("early", testpki.Options{NotBefore: time.Now().Add(time.Hour)}))
	old := must(testpki.NewCA("old", testpki.Options{NotAfter: time.Now().Add(-time.Minute)}))
	for _, bundle := range [][]byte{testpki.Bundle(early, old), testpki.Bundle(old, early), testpki.Bundle(old, early, old)} {
		if _, err := keys.NewMaterial(bundle, nil, nil); keys.ProblemOf(err) != "not_yet_valid" {
			t.Errorf("%v, want that a CA is not valid yet", err)
		}
	}
}

// A resumed session is verified by all intermediates of its chain.
func TestResumedSessionOfALongChain(t *testing.T) {
	t.Parallel()

	ends := newPKI(t)
	second := must(must(ends.ca.Intermediate("first", testpki.Options{})).Intermediate("second", testpki.Options{}))
	config := client(material(t, must(second.Client(runtime1, testpki.Options{})), ends.ca))
	server := keys.WebhookTLSConfig(ends.server, ends.server, runtime1)
	server.SetSessionTicketKeys([][32]byte{{1}})
	_ = must(handshake(t, server, config))

	if state, err := handshake(t, server, config); err != nil || !state.DidResume {
		t.Errorf("resumed: %t, %v; want a session with two intermediates to be resumed", state.DidResume, err)
	}
}
