package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// brokerConfig has one user for the runtime and one for the operator, as in docs/platforms/nats.md.
const brokerConfig = `
listen: %[1]q
jetstream { store_dir: %[2]q }
tls { cert_file: %[3]q, key_file: %[4]q, ca_file: %[5]q, verify_and_map: true }
authorization {
  users: [
    { user: %[6]q, permissions: { publish: { allow: [%[7]q] }, subscribe: { allow: [%[8]q] }, allow_responses: true } }
    { user: %[9]q, permissions: {
      publish: { allow: [
        "$JS.API.STREAM.INFO.watch-%[10]s", "$JS.API.STREAM.CREATE.watch-%[10]s",
        "$JS.API.CONSUMER.*.watch-%[10]s.>", "$JS.API.CONSUMER.MSG.NEXT.watch-%[10]s.>",
        "$JS.ACK.watch-%[10]s.>", "_INBOX.>"
      ] }
      subscribe: { allow: ["_INBOX.operator.%[10]s.>"] }
    } }
  ]
}
`

// operatorDomain is the SAN by which the broker identifies the operator.
const operatorDomain = manager + ".operators.example.com"

// startBroker starts a NATS server with the certificate. It returns the certificate of the operator
// and its settings. The operator has a way of its own to the broker, which can be cut.
func (s *scene) startBroker(addr string, server *testpki.Leaf) (operator *testpki.Leaf, env []string) {
	s.t.Helper()
	dir := s.t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	ca, cert, key := s.pki.Volume(server).Paths()
	runtime := core.RuntimeID(s.name)
	text := fmt.Sprintf(brokerConfig, addr, filepath.Join(dir, "store"), cert, key, ca, s.domain(),
		natsjetstream.Subject(manager, runtime), natsjetstream.InboxPrefix(runtime)+".>", operatorDomain, manager)
	s.must(os.WriteFile(file, []byte(text), 0o600))

	s.broker = lab.NewProcess(s.t, "NATS server", lab.Build(s.t, "test/lab/natsserver"), nil, "-c", file)
	s.broker.Launch()

	cable, err := lab.NewRelay(lab.Address(lab.FreePort(s.t)), 0, addr)
	s.must(err)
	s.t.Cleanup(cable.Close)
	s.cable = cable

	operator, err = s.pki.CA.Client("operator", testpki.Options{DNSNames: []string{operatorDomain}})
	s.must(err)
	return operator, []string{"NATS=tls://" + cable.Addr()}
}
