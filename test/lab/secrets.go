package lab

import (
	"encoding/hex"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// KeepsSecrets fails the test if the log of a process has key material or tokens: armour, lines of
// Base64, bytes in hexadecimal digits. A log may have fingerprints, which are hashes.
func KeepsSecrets(t testing.TB, log string, secrets ...[]byte) {
	t.Helper()
	if log == "" {
		t.Error("the log is empty: this check cannot fail")
	}
	if strings.Contains(log, "-----BEGIN ") {
		t.Error("PEM in the log")
	}
	lower := strings.ToLower(log)
	for _, secret := range secrets {
		if tellsText(log, secret) {
			t.Error("a part of a secret is in the log, in Base64 or as it is")
		}
		for block, rest := pem.Decode(secret); block != nil; block, rest = pem.Decode(rest) {
			if tellsBytes(lower, block.Bytes) {
				t.Errorf("a part of a %s is in the log in hexadecimal digits", block.Type)
			}
		}
	}
}

// tellsText looks for the beginning of each line of a secret that is long enough to be one.
func tellsText(log string, secret []byte) bool {
	const enough = 20
	for line := range strings.Lines(string(secret)) {
		line = strings.TrimSpace(line)
		if len(line) > enough && !strings.HasPrefix(line, "-") && strings.Contains(log, line[:enough]) {
			return true
		}
	}
	return false
}

func tellsBytes(log string, secret []byte) bool {
	const window = 16
	for i := 0; i+window <= len(secret); i += window {
		if strings.Contains(log, hex.EncodeToString(secret[i:i+window])) {
			return true
		}
	}
	return false
}

// Secrets returns the current content of a volume. A file may be missing or broken, because a test
// may have changed it.
func Secrets(volume *testpki.Volume) (secrets [][]byte) {
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		if text, err := os.ReadFile(volume.Path(name)); err == nil {
			secrets = append(secrets, text)
		}
	}
	return secrets
}

// keepsSecrets searches the agent's log when the test ends for its token, and for the content of
// its volume at that time and at its start.
func (a *Agent) keepsSecrets(t testing.TB, tokenFile string) {
	t.Helper()
	secrets := Secrets(a.Volume)
	if token, err := os.ReadFile(tokenFile); err == nil {
		// The beginning of a token is its header, which many have in common: the signature is the
		// secret.
		parts := strings.Split(string(token), ".")
		secrets = append(secrets, []byte(parts[len(parts)-1]))
	}
	t.Cleanup(func() { KeepsSecrets(t, a.FullLog(), append(secrets, Secrets(a.Volume)...)...) })
}
