package httpmtls_test

import (
	"crypto/tls"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls/testpki"
)

// The CA of a cluster issues the certificates of its API server and of all its kubelets.
func TestWebhookAllowsNamedClients(t *testing.T) {
	t.Parallel()

	const apiServer = "kube-apiserver-kubelet-client"

	keys := newPKI(t)
	issue := func(commonName string, opts testpki.Options) *httpmtls.Material {
		return material(t, must(keys.ca.Client(commonName, opts)), keys.ca)
	}
	kubelet := issue("system:node:worker-1", testpki.Options{DNSNames: []string{"worker-1"}})

	for name, tc := range map[string]struct {
		client  *httpmtls.Material
		names   []string
		refused bool
	}{
		"any client without names": {kubelet, nil, false},
		"API server":               {issue(apiServer, testpki.Options{}), []string{"front-proxy", apiServer}, false},
		"kubelet":                  {kubelet, []string{apiServer}, true},
		"DNS name":                 {kubelet, []string{"Worker-1"}, false},
		"URI": {
			issue("", testpki.Options{URIs: []string{"spiffe://cluster/apiserver"}}),
			[]string{"spiffe://cluster/apiserver"},
			false,
		},
		"part of a name":             {kubelet, []string{"worker"}, true},
		"empty name, no Common Name": {issue("", testpki.Options{}), []string{""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httpmtls.WebhookTLSConfig(keys.server, keys.server, tc.names...)
			config := client(tc.client) // It keeps sessions: the second handshake resumes one.

			for range 2 {
				if _, err := handshake(t, server, config); (err != nil) != tc.refused {
					t.Errorf("refused: %v, want refused: %v", err, tc.refused)
				}
			}
		})
	}
}

// A session that is older than the names must not circumvent them.
func TestResumedSessionIsCheckedForNames(t *testing.T) {
	t.Parallel()

	keys := newPKI(t)
	config := client(keys.client)
	allow := func(names ...string) *tls.Config {
		server := httpmtls.WebhookTLSConfig(keys.server, keys.server, names...)
		server.SetSessionTicketKeys([][32]byte{{1}})

		return server
	}

	_ = must(handshake(t, allow(), config))

	if state, err := handshake(t, allow(runtime1), config); err != nil || !state.DidResume {
		t.Fatalf("resumed: %v, %v; want a resumed session", state.DidResume, err)
	}

	if _, err := handshake(t, allow("another"), config); err == nil {
		t.Error("a session of a client with another name was resumed")
	}
}

func TestNamesWithoutCAsAdmitNoClient(t *testing.T) {
	t.Parallel()

	keys := newPKI(t)
	if _, err := handshake(t, httpmtls.WebhookTLSConfig(keys.server, nil, "apiserver"),
		client(keys.client)); err == nil {
		t.Error("a client was accepted, but its name cannot be checked")
	}
}

// A listener that checks each request uses new CAs at once, and none without material.
func TestRootsArePresentOnes(t *testing.T) {
	t.Parallel()

	first, second := newPKI(t), newPKI(t)
	source := &switchSource{}
	source.set(first.server)

	roots := httpmtls.Roots(source)
	if roots() != first.server.Roots {
		t.Error("not the CAs of the material in use")
	}

	source.set(second.server)

	if roots() != second.server.Roots {
		t.Error("not the CAs of the new material")
	}

	if httpmtls.Roots((*httpmtls.Material)(nil))() != nil {
		t.Error("CAs without material, want nil")
	}
}
