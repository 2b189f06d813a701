package chain

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/controlplane/installation"
	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// installChart installs the agent of the chart beside the other one, with its Secret. It watches what
// no webhook does.
func (w *world) installChart() {
	w.t.Helper()
	const watchers = `informer.watchers=[{"metadata":{"name":"by-chart","namespace":"kcp-system"},"spec":{"manager":"my-operator",` +
		`"resourceToWatch":{"group":"","version":"v1","resource":"configmaps"},"labelsToWatch":{"watched-by":"by-chart"}}}]`
	in := w.runtime
	rig.Kubectl(w.t, "--kubeconfig", in.Kubeconfig, "create", "namespace", "by-chart")
	var secret corev1.Secret
	w.must(in.Client.Get(w.t.Context(), client.ObjectKey{Namespace: installation.Name, Name: "runtime-watcher-tls"}, &secret))
	secret.ObjectMeta = metav1.ObjectMeta{Namespace: "by-chart", Name: secret.Name}
	w.must(in.Client.Create(w.t.Context(), &secret))
	out, err := rig.Helm(w.t, "install", "agent", "deploy/charts/runtime-watcher-agent", "--namespace", "by-chart",
		"--kubeconfig", in.Kubeconfig, "--set", "image.repository=agent.example/agent,image.tag=test",
		"--set", "controlPlane.address="+host+":443,env.TRANSPORT=nats,source=informer", "--set-json", watchers)
	if err != nil {
		w.t.Fatalf("helm install: %v: %s", err, out)
	}
}

// operatorDomain is the SAN of the operator in the guide.
const operatorDomain = "my-operator.operators.example.com"

// consume starts the NATS server of the guide with the Secret of a listener, and a consumer.
func (w *world) consume(pinning core.Verifier, handlers map[core.Manager]core.Handler) {
	w.t.Helper()
	text := documented(w.t, "", "tls {")
	users := rig.Must(natsjetstream.Authorization(
		rig.RuntimeUser(stays, steady), natsjetstream.User{Name: operatorDomain, Operator: steady}))
	if !strings.Contains(text, string(users)) {
		w.t.Errorf("docs/platforms/nats.md has other users than\n%s", users)
	}
	text = strings.NewReplacer(`"/data"`, `"`+w.broker.Dir+`/data"`, `_file: "`, `_file: "`+w.broker.Dir+"/").Replace(text)
	w.broker.Write("nats.conf", fmt.Appendf(nil, "listen: %q\n%s", w.broker.Addr, text))
	loaded := map[string][]byte{}
	w.eventually("the NATS server has key material", func() bool { return w.load(loaded) })
	w.broker.Launch()
	w.broker.Await()
	rig.Run(w.t, "reloads", func(ctx context.Context) error {
		for tick := time.Tick(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick:
				w.load(loaded)
			}
		}
	})
	conn := rig.Must(connectOperator("tls://"+w.broker.Addr, w.operatorKeys(), func(o *nats.Options) error {
		o.TLSConfig.ServerName = host // It is at an address here.
		return nil
	}))
	w.t.Cleanup(conn.Close)
	opts := natsjetstream.Options{Fleet: w.fleet, Peer: rig.MappedPeer}
	consumer := rig.Must(natsjetstream.NewConsumer(conn, pinning, handlers, opts))
	rig.Run(w.t, "consumer", consumer.Start)
	w.eventually("the consumer is ready", func() bool { return consumer.Ready() == nil })
}

// restart kills the NATS server while no file is half written, and starts it again.
func (w *world) restart() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broker.Restart()
}

// load writes the Secret of a listener to the folder of the NATS server, as the kubelet does. The server reloads only
// a changed bundle. The steps with NATS do the rest.
func (w *world) load(loaded map[string][]byte) (changed bool) {
	var secret corev1.Secret
	err := w.plane.Client.Get(w.t.Context(), w.set.ListenerSecret(), &secret)
	if err != nil || len(secret.Data["tls.crt"]) == 0 || maps.EqualFunc(secret.Data, loaded, bytes.Equal) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, text := range secret.Data {
		w.broker.Write(name, text)
	}
	isSameBundle := bytes.Equal(secret.Data["ca.crt"], loaded["ca.crt"])
	maps.Copy(loaded, secret.Data)
	return !w.broker.Running() || isSameBundle || w.broker.Signal(syscall.SIGHUP) == nil
}

// stepsWithNATS takes the last steps of the runbook: the server reloads its new certificate, cert-manager renews the
// certificate of the operator, and both ends use the new CA.
func (w *world) stepsWithNATS() {
	w.t.Helper()
	var ca, listener, operator corev1.Secret
	get := func(name string, into *corev1.Secret) bool {
		key := client.ObjectKey{Namespace: rig.Namespace, Name: name}
		return w.plane.Client.Get(w.t.Context(), key, into) == nil && len(into.Data[corev1.TLSCertKey]) > 0
	}
	if !get("watcher-ca-2", &ca) || !get("my-operator-nats-tls", &operator) || !get("watcher-listener", &listener) {
		w.t.Fatal("a Secret of the runbook does not exist")
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Data[corev1.TLSCertKey])
	connect := func() error {
		own, err := tls.X509KeyPair(operator.Data[corev1.TLSCertKey], operator.Data[corev1.TLSPrivateKeyKey])
		if err != nil {
			return err
		}
		conn, err := nats.Connect("tls://"+w.broker.Addr, nats.Secure(&tls.Config{
			ServerName: host, RootCAs: roots, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13,
		}))
		if err == nil {
			conn.Close()
		}
		return err
	}
	w.eventually("the kubelet has updated the certificate of the server", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		file, err := os.ReadFile(filepath.Join(w.broker.Dir, corev1.TLSCertKey))
		return err == nil && bytes.Equal(file, listener.Data[corev1.TLSCertKey])
	})
	w.must(w.broker.Signal(syscall.SIGHUP))
	w.eventually("the server serves a certificate of the new CA", func() bool { return connect() == nil })
	former := operator.Data[corev1.TLSCertKey]
	w.must(w.plane.Client.Delete(w.t.Context(), operator.DeepCopy()))
	w.eventually("the operator has a certificate of the new CA", func() bool {
		if !get("my-operator-nats-tls", &operator) || bytes.Equal(operator.Data[corev1.TLSCertKey], former) {
			return false
		}
		block, _ := pem.Decode(operator.Data[corev1.TLSCertKey])
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return false
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err == nil && connect() == nil
	})
}

// operatorKeys are those of the guide: a certificate of its own, and the CAs of the listener.
func (w *world) operatorKeys() func() (*tls.Certificate, *x509.CertPool) {
	w.t.Helper()
	var certificate unstructured.Unstructured
	text := documented(w.t, "yaml", "apiVersion: cert-manager.io")
	w.must(yaml.UnmarshalStrict([]byte(text), &certificate.Object))
	certificate.SetNamespace(rig.Namespace)
	w.must(client.WithFieldValidation(w.plane.Client, metav1.FieldValidationStrict).Create(w.t.Context(), &certificate))
	source := func(name types.NamespacedName) *keysource.Secret {
		s := rig.Must(keysource.NewSecret(w.plane.Client, name, keys.FilesOptions{Poll: 200 * time.Millisecond}))
		rig.Run(w.t, name.Name, s.Start)
		w.eventually(name.Name+" is issued", func() bool { _, err := s.Material(); return err == nil })
		return s
	}
	own := types.NamespacedName{Namespace: rig.Namespace, Name: "my-operator-nats-tls"}
	leaf := source(own)
	roots := keys.Roots(source(w.set.ListenerSecret()))
	return func() (*tls.Certificate, *x509.CertPool) { return rig.Must(leaf.Material()).Certificate, roots() }
}

// connectOperator connects with the present certificate, also after a rotation.
func connectOperator(
	servers string, material func() (*tls.Certificate, *x509.CertPool), opts ...nats.Option,
) (*nats.Conn, error) {
	return nats.Connect(servers, append(natsjetstream.OperatorConnectOptions("my-operator", material), opts...)...)
}

// documented returns the code of the guide in a language that begins with a text.
func documented(t *testing.T, language, begins string) string {
	t.Helper()
	pattern := "(?s)```" + language + "\n(" + regexp.QuoteMeta(begins) + ".*?)```\n"
	found := regexp.MustCompile(pattern).FindSubmatch(test.Read(t, "docs/platforms/nats.md"))
	if found == nil {
		t.Fatalf("the guide has no code in %q that begins with %q", language, begins)
	}
	return string(found[1])
}
