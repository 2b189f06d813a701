package hardening

import (
	"encoding/hex"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/rig"
)

func TestKeepsSecretsFindsThem(t *testing.T) {
	s := newScene(t, nil)
	text, err := os.ReadFile(s.agent.Volume.Path(testpki.FileKey))
	if err != nil {
		t.Fatal(err)
	}

	block, _ := pem.Decode(text)
	for name, log := range map[string]string{
		"PEM": string(text), "nothing": "", "Base64": strings.Split(string(text), "\n")[1], "hexadecimal": hex.EncodeToString(block.Bytes),
	} {
		// A test that is not ours takes the complaint.
		probe := &complaints{TB: t}
		rig.KeepsSecrets(probe, log, rig.Secrets(s.agent.Volume)...)

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
