package soak

import (
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

var (
	objects = flag.Int("objects", 50_000, "number of objects for TestInformerMemory")
	size    = flag.Int("size", 100, "bytes in the data of each of these objects")
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// TestInformerMemory measures the peak resident memory of an agent that lists objects, and lists
// them again after a 410, when each of them has changed.
func TestInformerMemory(t *testing.T) {
	lab.SkipShort(t)
	const limit = 128 // MiB, of the manifests for an informer.
	most := 40 + 800*float64(*objects)/(1<<20)
	for _, watchList := range []bool{false, true} { // Older API servers know lists only.
		t.Run(fmt.Sprint("WatchList ", watchList), func(t *testing.T) {
			server := httptest.NewTLSServer(&crowded{watchList: watchList})
			t.Cleanup(server.Close)
			ca, token := filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "token")
			for path, text := range map[string][]byte{
				ca:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
				token: []byte("token"),
			} {
				lab.NoError(t, os.WriteFile(path, text, 0o600))
			}
			pki := lab.NewPKI(t)
			control := lab.StartPlane(t, pki, lab.PlaneOptions{}, manager)
			agent := lab.StartAgent(t, pki.RuntimeVolume(runtime, lab.RuntimeDomain(runtime)), control.Addr,
				lab.AgentOptions{Env: map[string]string{
					"SOURCE": "informer", "INFORMER_API_SERVER": server.URL, "INFORMER_CA_CERT": ca, "INFORMER_TOKEN_FILE": token,
					"KUBE_FEATURE_WatchListClient": strconv.FormatBool(watchList),
					"GOMEMLIMIT":                   fmt.Sprintf("%dMiB", (limit-20)/2), // As in a container with that limit.
					"WATCHERS": fmt.Sprintf("kind: Watcher\nmetadata: {name: memory}\nspec:\n  manager: %s\n"+
						"  resourceToWatch: {group: \"\", version: v1, resource: configmaps}\n", manager),
				}})
			lab.Eventually(t, 5*time.Minute, "all changes are observed", func() bool {
				return agent.Metric("runtime_watcher_agent_informer_changes_total") >= float64(*objects)
			})
			highest := peak(agent)
			t.Logf("%d objects with %d bytes listed, and listed again: %.0f MiB at the peak", *objects, *size, highest)
			if highest > most {
				t.Errorf("%.0f MiB at the peak, want at most %.0f", highest, most)
			}
		})
	}
}

// crowded is an API server with many ConfigMaps, which change with each list. The version of the
// first list has expired when it is watched.
type crowded struct {
	watchList bool
	lists     atomic.Int64
}

func (c *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	watched, initial := query.Get("watch") != "", query.Get("sendInitialEvents") != ""
	switch {
	case r.URL.Path == "/api/v1":
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap"}]}`)
	case initial && !c.watchList:
		w.WriteHeader(http.StatusUnprocessableEntity)
	case initial:
		c.list(w, `{"type":"ADDED","object":`, "}\n", `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n")
		c.follow(w, r)
	case watched:
		c.follow(w, r)
	default:
		_, _ = io.WriteString(w, `{"kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"items":[`)
		c.list(w, "", ",", object(0, 0)+"]}")
	}
}

// list writes the objects, each between two texts, and the end.
func (c *crowded) list(w io.Writer, before, after, end string) {
	round := c.lists.Add(1)
	for n := range *objects {
		if _, err := io.WriteString(w, before+object(n+1, round)+after); err != nil {
			return
		}
	}
	_, _ = io.WriteString(w, end)
}

func object(n int, round int64) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"object-%d","namespace":"namespace-%d",`+
		`"uid":"00000000-0000-0000-0000-%012d","resourceVersion":"%d","labels":{"operator.kyma-project.io/managed-by":"kyma",`+
		`"app":"app-%d"},"annotations":{"operator.kyma-project.io/owned-by":"kcp-system/kyma-%d"}},"data":{"n":"%d%s"}}`,
		n, n%40, n, n, n%20, n%20, round, strings.Repeat("x", *size))
}

// follow ends the first watch with a 410, and leaves the others open.
func (c *crowded) follow(w http.ResponseWriter, r *http.Request) {
	if c.lists.Load() == 1 {
		_, _ = io.WriteString(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`+"\n")
		return
	}
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}
