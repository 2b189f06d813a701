package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/adapters/controllerruntime"
	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine" //nolint:depguard // Not released.
)

// broker is a NATS server between runtime and operator.
type broker struct {
	addr string
	// conn is that of the operator.
	conn *nats.Conn
}

// operatorDomain is the SAN of the operator's certificate, and its user at the NATS server.
const operatorDomain = component + ".operators.example.com"

// brokerConfig is followed by the users.
const brokerConfig = `listen: %q
jetstream { store_dir: %q }
tls { cert_file: %q, key_file: %q, ca_file: %q, verify_and_map: true }
%s`

func (d *demo) startBroker(ctx context.Context) (string, error) {
	address, err := machine.FreeAddress(ctx)
	if err != nil {
		return "", err
	}
	d.broker = &broker{addr: address}
	config, err := d.configureBroker()
	if err != nil {
		return "", err
	}
	if err := d.launchBroker(config); err != nil {
		return "", err
	}
	if err := d.connectOperator(); err != nil {
		return "", err
	}
	err = poll(ctx, d.broker.conn.IsConnected)
	return fmt.Sprintf("at tls://%s, one user for %s and one for the operator", d.broker.addr, runtimeName), err
}

// configureBroker writes the certificate and the configuration of the server.
func (d *demo) configureBroker() (string, error) {
	leaf, err := d.pki.ca.Server("nats", testpki.Options{})
	if err != nil {
		return "", err
	}
	users, err := natsjetstream.Authorization(
		brokerUser(runtimeName, runtimeDomain), brokerUser(neighbour, neighbourDomain),
		natsjetstream.User{Name: operatorDomain, Operator: component})
	if err != nil {
		return "", err
	}
	dir := filepath.Join(d.keys(), "nats")
	file := func(name string) string { return filepath.Join(dir, name) }
	config := fmt.Sprintf(brokerConfig, d.broker.addr, file("store"),
		file("tls.crt"), file("tls.key"), file("ca.crt"), users)
	files := testpki.Files(leaf, d.pki.ca)
	files["nats.conf"] = []byte(config)
	err = os.Mkdir(dir, 0o700)
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(file(name), content, 0o600))
	}
	return file("nats.conf"), err
}

// brokerUser lets a runtime publish under its own name.
func brokerUser(runtime core.RuntimeID, domain string) natsjetstream.User {
	return natsjetstream.User{Name: domain, Runtime: runtime, Managers: []core.Manager{component}}
}

func (d *demo) launchBroker(config string) error {
	log := filepath.Join(d.logs, "nats.log")
	server, err := machine.Launch(log, d.brokerBinary, os.Environ(), []string{"-c", config})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func() error {
		server.Stop()
		return nil
	})
	go func() {
		<-server.Exited()
		d.fail(fmt.Errorf("the NATS server ended: %s\n  next: see nats.log", server.State()))
	}()
	return nil
}

// connectOperator connects with a certificate of the operator.
func (d *demo) connectOperator() error {
	leaf, err := d.pki.ca.Client("operator", testpki.Options{DNSNames: []string{operatorDomain}})
	if err != nil {
		return err
	}
	keys := func() (*tls.Certificate, *x509.CertPool) { return &leaf.TLS, d.pki.ca.Pool() }
	d.broker.conn, err = nats.Connect("tls://"+d.broker.addr, natsjetstream.OperatorConnectOptions(component, keys)...)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func() error {
		d.broker.conn.Close()
		return nil
	})
	return nil
}

// embedConsumer adds a consumer to an operator, instead of a listener.
func (o *operator) embedConsumer(
	mgr manager.Manager, object *metav1.PartialObjectMetadata, runtimes *controllerruntime.Runtimes,
) error {
	o.source = controllerruntime.NewSource(controllerruntime.EnqueueByRuntime(runtimes), o.sourceOptions())
	events, err := natsjetstream.NewConsumer(o.broker.conn, listener.SANPinning(runtimes),
		map[core.Manager]core.Handler{component: o.source},
		natsjetstream.Options{Peer: mapped, Logger: o.log, Fleet: o.fleet})
	if err != nil {
		return err
	}
	o.source.Follow(o.fleet, component)
	ready := func(*http.Request) error { return events.Ready() }
	return errors.Join(mgr.Add(events), mgr.AddReadyzCheck("events", ready),
		builder.ControllerManagedBy(mgr).For(object).WatchesRawSource(o.source).Complete(o))
}

// mapped returns the SAN that the NATS server demands of a runtime.
func mapped(runtime core.RuntimeID) core.Peer {
	return core.Peer{ID: runtime, CommonName: string(runtime), DNSNames: []string{string(runtime) + ".example.com"}}
}
