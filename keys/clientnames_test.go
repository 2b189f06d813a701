package keys_test

import (
	"crypto/tls"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// The CA of a cluster issues the certificates of its API server and of all its kubelets.
func TestWebhookAllowsNamedClients(t *testing.T) {
	t.Parallel()
	const apiServer, apiServerURI = "kube-apiserver-kubelet-client", "spiffe://cluster/apiserver"
	ends := newPKI(t)
	issue := func(commonName string, opts testpki.Options) *keys.Material {
		return material(t, must(ends.ca.Client(commonName, opts)), ends.ca)
	}
	kubelet := issue("system:node:worker-1", testpki.Options{DNSNames: []string{"worker-1"}})
	for name, tc := range map[string]struct {
		client  *keys.Material
		names   []string
		refused bool
	}{
		"any client without names":   {kubelet, nil, false},
		"API server":                 {issue(apiServer, testpki.Options{}), []string{"front-proxy", apiServer}, false},
		"kubelet":                    {kubelet, []string{apiServer}, true},
		"DNS name":                   {kubelet, []string{"Worker-1"}, false},
		"URI":                        {issue("", testpki.Options{URIs: []string{apiServerURI}}), []string{apiServerURI}, false},
		"part of a name":             {kubelet, []string{"worker"}, true},
		"empty name, no Common Name": {issue("", testpki.Options{}), []string{""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := keys.WebhookTLSConfig(ends.server, ends.server, tc.names...)
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
	ends := newPKI(t)
	config := client(ends.client)
	allow := func(names ...string) *tls.Config {
		server := keys.WebhookTLSConfig(ends.server, ends.server, names...)
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

// A listener that checks each request uses new CAs at once, and none without material.
func TestRootsArePresentOnes(t *testing.T) {
	t.Parallel()
	first, second := newPKI(t), newPKI(t)
	source := &switchSource{}
	source.set(first.server)
	roots := keys.Roots(source)
	if roots() != first.server.Roots {
		t.Error("not the CAs of the material in use")
	}
	source.set(second.server)
	if roots() != second.server.Roots {
		t.Error("not the CAs of the new material")
	}
	if keys.Roots((*keys.Material)(nil)) != nil {
		t.Error("CAs without material, want nil")
	}
}
