package hardening

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// operator is a listener as a process: native mTLS, and a line of output for each event.
type operator struct {
	*lab.Process

	addr string
}

// startOperator runs this test binary as a listener, see [TestMain].
func startOperator(t *testing.T, pki *lab.PKI, state string) *operator {
	t.Helper()
	leaf, err := pki.CA.Server("listener", testpki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	volume := pki.Volume(leaf)
	ca, cert, key := volume.Paths()
	o := &operator{addr: lab.Address(lab.FreePort(t))}
	o.Process = lab.NewProcess(t, "listener", os.Args[0], []string{
		stateAddr + "=" + state, "LISTEN=" + o.addr, "CA_CERT=" + ca, "TLS_CERT=" + cert, "TLS_KEY=" + key,
	})
	t.Cleanup(func() { lab.KeepsSecrets(t, o.FullLog(), lab.Secrets(volume)...) })
	o.Launch()
	return o
}

// printed reports whether the operator printed a delivery of an object from a runtime.
func (o *operator) printed(runtime, name string) bool {
	return strings.Contains(o.FullLog(), `{"runtime":"`+runtime+`","name":"`+name+`"}`)
}

func eventV2(name string) io.Reader {
	return strings.NewReader(`{"watched":{"Namespace":"default","Name":"` + name + `"},` +
		`"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`)
}

// send posts one event as a runtime with that client.
func (o *operator) send(t *testing.T, client *http.Client, name string) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"https://"+o.addr+"/v2/"+manager+"/event", eventV2(name))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
