package informer

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// faulty is an API server of one test, behind a relay that can cut the connections of the source.
type faulty struct {
	*apiserver.ControlPlane

	t     testing.TB
	relay *lab.Relay
	host  string
	// args is the command line of the API server, nil as long as it is the first one.
	args []string
	// stop ends the present one, and exited is closed then.
	stop   func()
	exited chan struct{}

	mu sync.Mutex
	// lists counts the lists, and the watches that begin with one.
	lists int
}

func newFaulty(t testing.TB) *faulty {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real API server, which -short leaves out")
	}
	plane := apiserver.StartT(t, apiserver.Options{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{definition("widgets", "Widget")},
	})
	address, err := url.Parse(plane.Config.Host)
	if err != nil || address.Host == "" {
		address = &url.URL{Scheme: "https", Host: plane.Config.Host}
	}
	f := &faulty{ControlPlane: plane, t: t, host: address.Host}
	f.relay, err = lab.NewRelay(lab.Address(lab.FreePort(t)), 0, address.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.relay.Close)
	return f
}

// throughRelay returns a configuration for the source. It counts lists.
func (f *faulty) throughRelay() *rest.Config {
	config := rest.CopyConfig(f.Config)
	config.Host = "https://" + f.relay.Addr()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			query := r.URL.Query()
			if strings.HasSuffix(r.URL.Path, "/widgets") && (query.Get("watch") == "" || query.Get("sendInitialEvents") != "") {
				f.mu.Lock()
				f.lists++
				f.mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (f *faulty) listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// kill ends the API server.
func (f *faulty) kill() {
	f.t.Helper()
	if f.args == nil {
		f.args = f.commandLine()
		return
	}
	f.stop()
}

// commandLine returns that of the API server, which it kills.
func (f *faulty) commandLine() []string {
	f.t.Helper()
	_, port, _ := strings.Cut(f.host, ":")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		f.t.Skip("needs /proc to find the API server")
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // It may have ended.
		args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		if !strings.Contains(args[0], "kube-apiserver") || !strings.Contains(string(text), "--secure-port="+port) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			f.t.Fatal(err)
		}
		return args
	}
	f.t.Fatal("no API server with port " + port)
	return nil
}

// launch starts the API server again, and returns when it serves. It may have to be started more than
// once, until the port of the former process is free.
func (f *faulty) launch() {
	f.t.Helper()
	lab.Eventually(f.t, patience, "the API server serves again", func() bool {
		if f.ended() {
			f.start()
		}
		return f.serves()
	})
}

func (f *faulty) start() {
	f.t.Helper()
	cmd := exec.Command(f.args[0], f.args[1:]...) // Its life is that of the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // How it ended does not matter.
	}()
	f.exited = exited
	f.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	f.t.Cleanup(f.stop)
}

// ended reports whether no API server of start runs.
func (f *faulty) ended() bool {
	if f.exited == nil {
		return true
	}
	select {
	case <-f.exited:
		return true
	default:
		return false
	}
}

func (f *faulty) serves() bool {
	client, err := rest.HTTPClientFor(f.Config)
	if err != nil {
		f.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "https://"+f.host+"/readyz", http.NoBody)
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// compact removes the history of etcd.
func (f *faulty) compact() {
	f.t.Helper()
	var found struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := json.Unmarshal(f.etcd("range", `{"key":"AA=="}`), &found); err != nil {
		f.t.Fatal(err)
	}
	f.etcd("compaction", `{"revision":`+found.Header.Revision+`,"physical":true}`)
}

func (f *faulty) etcd(call, body string) []byte {
	f.t.Helper()
	var server string
	for _, arg := range f.args {
		if value, found := strings.CutPrefix(arg, "--etcd-servers="); found {
			server = value
		}
	}
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, server+"/v3/kv/"+call, bytes.NewBufferString(body))
	if err != nil {
		f.t.Fatal(err)
	}
	client := &http.Client{Timeout: patience}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		f.t.Fatalf("etcd: %d %v: %s", response.StatusCode, err, text)
	}
	return text
}
