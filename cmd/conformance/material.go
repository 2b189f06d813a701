package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// material issues certificates, or has one that was given.
type material struct {
	ca    *testpki.CA
	roots *x509.CertPool
	given *tls.Certificate
}

func newMaterial(s settings) (m material, err error) {
	if len(s.command) > 0 || s.files.Certificate == "" {
		m.ca, err = testpki.NewCA("runtime-watcher-conformance", testpki.Options{})
		if err == nil {
			m.roots = m.ca.Pool()
		}
		return m, err
	}
	pair, err := tls.LoadX509KeyPair(s.files.Certificate, s.files.Key)
	if err != nil {
		return m, err
	}
	pem, err := os.ReadFile(s.files.CA)
	m.given, m.roots = &pair, x509.NewCertPool()
	if !m.roots.AppendCertsFromPEM(pem) {
		err = errors.Join(err, fmt.Errorf("%s: no certificate", s.files.CA))
	}
	return m, err
}

// runtime returns the certificate of a runtime, if there is one.
func (m material) runtime(id core.RuntimeID) (tls.Certificate, error) {
	if m.given == nil {
		leaf, err := m.ca.Client(string(id), testpki.Options{})
		if err != nil {
			return tls.Certificate{}, err
		}
		return leaf.TLS, nil
	}
	if cn := m.given.Leaf.Subject.CommonName; cn != string(id) {
		return tls.Certificate{}, fmt.Errorf("needs a certificate of %s, and has that of %s", id, cn)
	}
	return *m.given, nil
}

// endpoint has the settings of an end under test: an address, and files with key material.
type endpoint struct {
	settings

	volume *testpki.Volume
}

// newEndpoint writes the files of a leaf into a folder.
func (m material) newEndpoint(s settings, leaf *testpki.Leaf) (*endpoint, error) {
	dir, err := os.MkdirTemp(s.dir, "")
	if err != nil {
		return nil, err
	}
	e := &endpoint{s, testpki.NewVolume(dir)}
	return e, e.volume.Write(testpki.Files(leaf, m.ca))
}

func (e *endpoint) environment() []string {
	ca, cert, key := e.volume.Paths()
	return []string{
		"RW_ADDRESS=" + e.address, "RW_MANAGER=" + string(e.manager), "RW_CA=" + ca, "RW_CERT=" + cert, "RW_KEY=" + key,
		"RW_CONTRACT=" + string(e.contract), "RW_OWNER=" + owner,
	}
}

type process struct {
	stdin io.WriteCloser
	ended chan struct{} // closed when it ended
}

// start runs the command until ctx ends. line gets each line of the output.
func (e *endpoint) start(ctx context.Context, stderr io.Writer, line func([]byte)) (*process, error) {
	cmd := exec.CommandContext(ctx, e.command[0], e.command[1:]...) //nolint:gosec // The user names it.
	cmd.Env, cmd.Stderr = append(os.Environ(), e.environment()...), stderr
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		return nil, err
	}
	p := &process{stdin, make(chan struct{})}
	e.running.Go(func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Bytes())
		}
		_ = cmd.Wait()
	})
	return p, nil
}

func await(ctx context.Context, address string, ended <-chan struct{}) error {
	const pause = 50 * time.Millisecond
	for {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no receiver at %s: %w", address, err)
		case <-ended:
			return errors.New("the receiver ended before it served")
		case <-time.After(pause):
		}
	}
}

// record adds a delivery that a receiver printed.
func record(operator *coretest.Recorder, line []byte) {
	var d struct{ Event, Runtime, Manager, Namespace, Name string }
	if json.Unmarshal(line, &d) != nil || d.Event == "" { //nolint:musttag // Names match in lower case, too.
		return
	}
	_ = operator.Handle(context.Background(), core.Delivery{
		Runtime: core.RuntimeID(d.Runtime), Manager: core.Manager(d.Manager),
		Event: core.WatchEvent{
			Resync: d.Event == "resync", Watched: types.NamespacedName{Namespace: d.Namespace, Name: d.Name},
		},
	})
}
