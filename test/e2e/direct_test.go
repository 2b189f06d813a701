package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core/watch"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
)

// TestOnlyConnectionsToTheControlPlaneUseTheProxy starts real agents with HTTPS_PROXY, and with hosts that no
// one resolves. Only the control plane is asked for at the proxy: the canary, the comparison of the webhooks
// and the informer connect to the API server directly.
func TestOnlyConnectionsToTheControlPlaneUseTheProxy(t *testing.T) {
	t.Parallel()
	const controlPlane, apiServer = "control-plane.invalid:443", "https://runtime.invalid:6443"
	var mu sync.Mutex
	asked := map[string]bool{}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.Method+" "+r.Host] = true
		mu.Unlock()
		http.Error(w, "unknown host", http.StatusBadGateway)
	}))
	defer proxy.Close()

	pki := rig.NewPKI(t)
	volume := rig.VolumeEnv(pki.RuntimeVolume("runtime-1", rig.RuntimeDomain("runtime-1")))
	token := filepath.Join(t.TempDir(), "token")
	rig.NoError(t, os.WriteFile(token, []byte("token"), 0o600))
	watches := []watch.Watch{{
		Name: types.NamespacedName{Namespace: "kcp-system", Name: "widgets"}, Manager: "widgets",
		Resource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
	}}
	for name, row := range map[string]struct {
		env  map[string]string
		line string
	}{
		"webhook": {map[string]string{
			"CANARY_LEASE": "runtime-watcher/runtime-watcher-canary", "CANARY_API_SERVER": apiServer, "CANARY_TOKEN_FILE": token,
			"CANARY_CA_CERT": volume["CA_CERT"], "CANARY_INTERVAL": "1s", "WEBHOOK_CONFIGURATION": "runtime-watcher",
		}, "the canary cannot write its Lease"},
		"informer": {map[string]string{
			"SOURCE": "informer", "WATCHERS": string(rig.Must(json.Marshal(watch.DocumentOf(watches)))),
			"INFORMER_API_SERVER": apiServer, "INFORMER_TOKEN_FILE": token, "INFORMER_CA_CERT": volume["CA_CERT"],
		}, "cannot establish a watch"},
	} {
		env := map[string]string{
			"HTTPS_PROXY": proxy.URL, "CONTROL_PLANE_ADDRESS": controlPlane, "MANAGERS": "widgets",
			"WEBHOOK_PORT": strconv.Itoa(rig.FreePort(t)), "METRICS_PORT": strconv.Itoa(rig.FreePort(t)),
		}
		maps.Copy(env, volume)
		maps.Copy(env, row.env)
		agent := rig.NewProcess(t, name, rig.Build(t, "cmd/agent"), rig.Environ(env))
		agent.Launch()
		for _, line := range []string{row.line, `"reason":"proxy_upstream"`} {
			rig.Eventually(t, rig.Patience, name+" logs "+line, func() bool { return strings.Contains(agent.FullLog(), line) })
		}
		agent.Kill()
	}
	mu.Lock()
	defer mu.Unlock()
	rig.Same(t, "requests to the proxy", []string{"CONNECT " + controlPlane}, slices.Collect(maps.Keys(asked)))
}
