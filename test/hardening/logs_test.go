package hardening

import (
	"encoding/hex"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
)

// keepsSecrets looks for key material in what a process has logged: armour, lines of Base64, bytes in hexadecimal digits.
func keepsSecrets(t testing.TB, log string, volume *testpki.Volume) {
	t.Helper()

	if log == "" {
		t.Error("the log is empty: nothing can be said of it")
	}

	if strings.Contains(log, "BEGIN ") {
		t.Error("PEM in the log")
	}

	for _, name := range []string{testpki.FileCA, testpki.FileCert, testpki.FileKey} {
		text, err := os.ReadFile(volume.Path(name))
		if err != nil {
			t.Fatal(err)
		}

		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if len(line) > 20 && !strings.HasPrefix(line, "-") && strings.Contains(log, line[:20]) {
				t.Errorf("%s, or a part of it, is in the log in Base64", name)
			}
		}

		block, _ := pem.Decode(text)
		if block == nil {
			t.Fatalf("%s is no PEM", name)
		}

		const window = 16
		for i := 0; i+window <= len(block.Bytes); i += window {
			// A log may hold a fingerprint, which is a hash, but no bytes.
			if strings.Contains(strings.ToLower(log), hex.EncodeToString(block.Bytes[i:i+window])) {
				t.Errorf("%s, or a part of it, is in the log in hexadecimal digits", name)
			}
		}
	}
}

func TestKeepsSecretsFindsThem(t *testing.T) {
	s := newScene(t, nil)
	text, err := os.ReadFile(s.agent.Volume.Path(testpki.FileKey))
	if err != nil {
		t.Fatal(err)
	}

	block, _ := pem.Decode(text)
	for name, log := range map[string]string{
		"PEM": string(text), "Base64": strings.Split(string(text), "\n")[1], "hexadecimal": hex.EncodeToString(block.Bytes),
	} {
		// A test that is not ours takes the complaint.
		probe := &complaints{TB: t}
		keepsSecrets(probe, log, s.agent.Volume)

		if probe.n == 0 {
			t.Errorf("a key as %s is not found", name)
		}
	}
}

// complaints counts what a check has to complain about.
type complaints struct {
	testing.TB

	n int
}

func (c *complaints) Helper() {}

func (c *complaints) Error(...any) { c.n++ }

func (c *complaints) Errorf(string, ...any) { c.n++ }
