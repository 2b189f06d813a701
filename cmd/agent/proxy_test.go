package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// realProxy is the process of a tinyproxy.
type realProxy struct {
	address, config string
	process         *exec.Cmd
}

// newProxy starts a proxy that allows CONNECT to a port only. More are lines of its configuration.
func newProxy(t *testing.T, port string, more ...string) *realProxy {
	t.Helper()

	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	noError(t, l.Close())
	host, own, _ := net.SplitHostPort(address)
	lines := append([]string{
		"Listen " + host, "Port " + own, "Allow 127.0.0.1", "MaxClients 20", "Timeout 600", "ConnectPort " + port,
		"LogLevel Error", "DisableViaHeader Yes",
	}, more...)

	config := writeFile(t, filepath.Join(t.TempDir(), "tinyproxy.conf"), strings.Join(lines, "\n")+"\n")
	p := &realProxy{address: address, config: config}
	p.start(t)
	t.Cleanup(p.kill)

	return p
}

func (p *realProxy) start(t *testing.T) {
	t.Helper()

	path, err := exec.LookPath("tinyproxy")
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatal("needs tinyproxy (Debian: tinyproxy):", err)
	}
	if err != nil {
		t.Skip("needs tinyproxy (Debian: tinyproxy):", err)
	}

	p.process = exec.Command(path, "-d", "-c", p.config)
	noError(t, p.process.Start())
	for end := time.Now().Add(patience); ; {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.address)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal("tinyproxy does not listen:", err)
		}
	}
}

func (p *realProxy) kill() {
	if p.process != nil {
		_ = p.process.Process.Kill()
		_ = p.process.Wait()
		p.process = nil
	}
}

// portOf is that of the control plane.
func portOf(kcp *controlPlane) string {
	_, port, _ := net.SplitHostPort(kcp.address())
	return port
}

// An agent behind a proxy delivers through it, and TLS ends at the control plane. While the proxy is
// away, the log and a metric name it. When it is back, events arrive.
func TestProxy(t *testing.T) {
	p, kcp := newPlane(t)
	way := newProxy(t, portOf(kcp))
	agent := start(t, p, env(p, kcp, "MANAGERS=widgets", "CONTROL_PLANE_PROXY=http://"+way.address, "MAX_BACKOFF=1s"))
	defer agent.stop(t)
	kcp.nextResync(t)

	if lines := agent.log.wait(t, "the control plane is reached through a proxy", 1); lines[0]["proxy"] != way.address {
		t.Errorf("line %v, want the proxy %s", lines[0], way.address)
	}

	agent.review(t, "first", false)
	if got := kcp.next(t); got.runner != "runtime-1" || got.events[0].Watched.Name != "first" {
		t.Errorf("%+v arrived, want the first event with the certificate of the agent", got)
	}

	way.kill()
	kcp.CloseClientConnections()
	agent.review(t, "second", false)
	line := agent.log.wait(t, "manager does not accept events: the agent keeps them and retries", 1)[0]
	if line["reason"] != "proxy_unreachable" || !strings.Contains(fmt.Sprint(line["error"]), "proxy "+way.address) {
		t.Errorf("line %v, want the reason proxy_unreachable, and the address", line)
	}

	agent.until(t, func(scrape string) string {
		if !strings.Contains(scrape, `reason="proxy_unreachable"`) && !strings.Contains(scrape, `result="proxy_unreachable"`) {
			return "no metric names the proxy"
		}
		return ""
	})

	way.start(t)
	receive(t, kcp.received, func(r received) bool { // The first one may come again, if its answer was lost.
		return slices.ContainsFunc(r.events, func(e core.Numbered) bool { return e.Watched.Name == "second" })
	})
}

// A proxy that accepts connections and never answers is the reason for each manager, although the
// requests wait for one connection.
func TestHangingProxy(t *testing.T) {
	p, kcp := newPlane(t)
	hangs := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer hangs.Close()
	unnamed := map[any]bool{"one": true, "two": true, "three": true, "four": true}
	agent := start(t, p, env(p, kcp, "MANAGERS=one,two,three,four", "FORWARD_TIMEOUT=2s", "SHUTDOWN_TIMEOUT=1s",
		"CONTROL_PLANE_PROXY=http://"+hangs.Addr().String()))
	defer agent.stop(t)

	for n := 1; len(unnamed) > 0; n++ {
		line := agent.log.wait(t, "manager does not accept events: the agent keeps them and retries", n)[n-1]
		text := fmt.Sprint(line["error"])
		if line["reason"] == "proxy_unreachable" && strings.Contains(text, "proxy "+hangs.Addr().String()+": no answer in time") {
			delete(unnamed, line["manager"])
		}
	}
}

// Wrong credentials are named in the log. Correct ones in the file are used without a restart.
func TestProxyWithCredentials(t *testing.T) {
	p, kcp := newPlane(t)
	locked := newProxy(t, portOf(kcp), "BasicAuth agent secret")
	file := writeFile(t, filepath.Join(t.TempDir(), "credentials"), "agent:wrong-secret")
	agent := start(t, p, env(p, kcp, "MANAGERS=widgets", "MAX_BACKOFF=1s", "CONTROL_PLANE_PROXY=http://"+locked.address,
		"CONTROL_PLANE_PROXY_CREDENTIALS="+file))
	defer agent.stop(t)
	line := agent.log.wait(t, "manager does not accept events: the agent keeps them and retries", 1)[0]
	if line["reason"] != "proxy_unauthorized" || !strings.Contains(fmt.Sprint(line["error"]), "proxy "+locked.address+": status 401") {
		t.Errorf("line %v, want the reason proxy_unauthorized, and the address", line)
	}

	agent.review(t, "kept", false)
	writeFile(t, file, "agent:secret")
	receive(t, kcp.received, func(r received) bool {
		return slices.ContainsFunc(r.events, func(e core.Numbered) bool { return e.Watched.Name == "kept" })
	})
	if text := fmt.Sprint(agent.log.snapshot()); strings.Contains(text, "secret") {
		t.Errorf("a password is in the log:\n%s", text)
	}
}

// The check names the proxy, and whose fault it is.
func TestCheckThroughAProxy(t *testing.T) {
	p, kcp := newPlane(t)
	open := newProxy(t, portOf(kcp))
	closed := newProxy(t, "1")
	locked := newProxy(t, portOf(kcp), "BasicAuth agent secret")
	dead := newProxy(t, portOf(kcp))
	dead.kill()
	_, unused, _ := net.SplitHostPort(dead.address)
	alone := newProxy(t, unused)
	folder := t.TempDir()
	credentials := func(text string) string {
		return "CONTROL_PLANE_PROXY_CREDENTIALS=" + writeFile(t, filepath.Join(folder, fmt.Sprintf("%x", text)), text)
	}

	through := func(p *realProxy) string { return "CONTROL_PLANE_PROXY=http://" + p.address }
	for name, test := range map[string]struct {
		env   []string
		lines []string
	}{
		"open":               {[]string{through(open)}, []string{"ok    proxy", open.address, "through the proxy", "ok    heartbeat"}},
		"credentials":        {[]string{through(locked), credentials("agent:secret\n")}, []string{"ok    proxy", "ok    heartbeat"}},
		"no credentials":     {[]string{through(locked)}, []string{"FAIL  proxy", "407", "user and the password", "skip  heartbeat"}},
		"wrong ones":         {[]string{through(locked), credentials("agent:wrong")}, []string{"FAIL  proxy", "401", "user and the password", locked.address}},
		"malformed ones":     {[]string{through(locked), credentials("secret")}, []string{"FAIL  proxy", "user:password"}},
		"refused":            {[]string{through(closed)}, []string{"FAIL  proxy", "403", "allow CONNECT", closed.address}},
		"dead":               {[]string{through(dead)}, []string{"FAIL  proxy", dead.address, "that the proxy runs"}},
		"behind it":          {[]string{through(alone), "KCP_ADDR=127.0.0.1:" + unused}, []string{"FAIL  proxy", "status 5", "resolves and reaches it"}},
		"without an address": {[]string{"CONTROL_PLANE_PROXY=http://proxy.invalid"}, []string{"FAIL  proxy", "proxy.invalid:3128", "and the DNS"}},
		"direct":             {[]string{"CONTROL_PLANE_PROXY=direct", "HTTPS_PROXY=http://" + dead.address}, []string{"ok    heartbeat"}},
		"never to this host": {[]string{"HTTPS_PROXY=http://" + dead.address}, []string{"ok    heartbeat"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var out bytes.Buffer
			_ = checkSetUp(ctx, nil, lookup(env(p, kcp, append(test.env, "MANAGERS=my-operator")...)), &out)

			for _, want := range test.lines {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}

			if strings.Contains(out.String(), "secret") {
				t.Errorf("the password is shown in\n%s", out.String())
			}
		})
	}
}

// The rule for the way to the control plane: the setting, and otherwise the environment.
func TestProxyOfTheSettings(t *testing.T) {
	p := newPKI(t)
	kcp := newControlPlane(t, p, http.StatusOK)
	credentials := writeFile(t, filepath.Join(t.TempDir(), "credentials"), "a:b")

	for name, test := range map[string]struct {
		env     []string
		want    string
		warning string
	}{
		"none":                {nil, "", ""},
		"setting":             {[]string{"CONTROL_PLANE_PROXY=http://proxy"}, "http://proxy", ""},
		"setting wins":        {[]string{"CONTROL_PLANE_PROXY=http://proxy:1", "HTTPS_PROXY=http://other:2", "NO_PROXY=*"}, "http://proxy:1", ""},
		"direct":              {[]string{"CONTROL_PLANE_PROXY=direct", "HTTPS_PROXY=http://other:2"}, "", ""},
		"environment":         {[]string{"HTTPS_PROXY=http://other:2"}, "http://other:2", ""},
		"lower case":          {[]string{"https_proxy=http://other:2"}, "http://other:2", ""},
		"without a scheme":    {[]string{"HTTPS_PROXY=other:2"}, "http://other:2", ""},
		"without a port":      {[]string{"HTTPS_PROXY=http://other"}, "http://other:80", ""},
		"with a password":     {[]string{"HTTPS_PROXY=http://u:secret@other:2"}, "http://u:secret@other:2", ""},
		"plain HTTP only":     {[]string{"HTTP_PROXY=http://other:2"}, "", ""},
		"excluded":            {[]string{"HTTPS_PROXY=http://other:2", "NO_PROXY=.svc,kcp.example.com"}, "", ""},
		"excluded suffix":     {[]string{"HTTPS_PROXY=http://other:2", "no_proxy=.example.com"}, "", ""},
		"excluded port":       {[]string{"HTTPS_PROXY=http://other:2", "NO_PROXY=kcp.example.com:443"}, "", ""},
		"another port":        {[]string{"HTTPS_PROXY=http://other:2", "NO_PROXY=kcp.example.com:4222"}, "http://other:2", ""},
		"NATS port":           {[]string{"HTTPS_PROXY=http://other:2", "NO_PROXY=kcp.example.com:4222", "TRANSPORT=nats"}, "", ""},
		"TLS to the proxy":    {[]string{"HTTPS_PROXY=https://u:secret@other:2"}, "", "HTTPS_PROXY"},
		"SOCKS":               {[]string{"HTTPS_PROXY=socks5://other:2"}, "", "socks5://other:2"},
		"malformed":           {[]string{"HTTPS_PROXY=http://u:secret@ot her:2"}, "", "HTTPS_PROXY"},
		"malformed, excluded": {[]string{"HTTPS_PROXY=socks5://other:2", "NO_PROXY=example.com"}, "", ""},
		"idle credentials":    {[]string{"CONTROL_PLANE_PROXY_CREDENTIALS=" + credentials}, "", "without effect"},
		"credentials for one": {[]string{"CONTROL_PLANE_PROXY_CREDENTIALS=" + credentials, "HTTPS_PROXY=http://other:2"}, "http://other:2", ""},
	} {
		c, err := readSettings([]string{"--kcp-addr=kcp.example.com"}, lookup(env(p, kcp, test.env...)))
		noError(t, err)
		warnings := strings.Join(c.warnings, "\n")
		if c.ControlPlane.Proxy != test.want || strings.Contains(warnings, "secret") ||
			(test.warning == "") != (warnings == "") || !strings.Contains(warnings, test.warning) {
			t.Errorf("%s: proxy %q, warnings %q, want %q, %q", name, c.ControlPlane.Proxy, warnings, test.want, test.warning)
		}

		if strings.Contains(fmt.Sprint(c.effective), "secret") {
			t.Errorf("%s: the settings in the log have the password", name)
		}
	}

	for text, want := range map[string]string{
		"CONTROL_PLANE_PROXY=http://user:secret@proxy": "CONTROL_PLANE_PROXY_CREDENTIALS",
		"CONTROL_PLANE_PROXY=https://proxy:1":          "want http://host:port, or direct",
		"CONTROL_PLANE_PROXY=socks5://proxy:1":         "want http://host:port, or direct",
		"CONTROL_PLANE_PROXY=none":                     "want http://host:port, or direct",
		"CONTROL_PLANE_PROXY_CREDENTIALS=/missing":     "/missing",
		"CONTROL_PLANE_PROXY_CREDENTIALS=user:secret":  "want the path of a file",
		"NATS_HANDSHAKE_FIRST=true":                    "TRANSPORT=nats",
	} {
		_, err := readSettings(nil, lookup(env(p, kcp, text)))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want an error with %q, and without the password", text, err, want)
		}
	}
}

// Over NATS, too, the reason is the proxy, and not a connection that the client only knows as lost.
func TestProxyOnTheWayToNATS(t *testing.T) {
	p, kcp := newPlane(t)
	dead := newProxy(t, portOf(kcp))
	closed := newProxy(t, "1")
	dead.kill()

	for way, want := range map[*realProxy]string{dead: "proxy_unreachable", closed: "proxy_refused"} {
		t.Run(want, func(t *testing.T) {
			c, err := readSettings(nil, lookup(env(p, kcp, "TRANSPORT=nats", "NATS_HANDSHAKE_FIRST=true", "CONTROL_PLANE_PROXY=http://"+way.address)))
			noError(t, err)
			to, err := c.connectNATS(natsjetstream.ForwarderOptions{})
			noError(t, err)
			defer to.conn.Close()
			batch := core.Batch{Source: "runtime-1", Epoch: "e", Heartbeat: &core.Heartbeat{ID: "1", Number: 1}}
			again := time.NewTicker(10 * time.Millisecond) // The first dial is under way.
			defer again.Stop()

			for end := time.Now().Add(patience); ; <-again.C {
				err = to.Forward(t.Context(), "widgets", batch)
				if string(core.ReasonOf(err)) == want || time.Now().After(end) {
					break
				}
			}

			if string(core.ReasonOf(err)) != want || !strings.Contains(err.Error(), way.address) || core.IsPermanent(err) {
				t.Errorf("Forward = %v (%s), want %s with the address of the proxy", err, core.ReasonOf(err), want)
			}
		})
	}
}
