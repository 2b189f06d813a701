package hardening

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// raw sends bytes over TLS as they are and returns the status of the first answer, 0 if there is none.
func (s *scene) raw(text string) (status int, body string) {
	s.t.Helper()

	conn, err := tlsFrom(s.t.Context(), attackers, s.webhook(), s.trusting())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()

	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}

	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}

	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()

	told, _ := io.ReadAll(answer.Body) // What is there is checked.

	return answer.StatusCode, string(told)
}

func post(target, review string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s",
		target, len(review), strings.Join(append(headers, ""), "\r\n"), review)
}

// TestManagerSegmentSmugglesNothing sends reviews whose path is not that of a manager. The control plane must never hear of them.
func TestManagerSegmentSmugglesNothing(t *testing.T) {
	s := newScene(t, nil)

	refused := []string{
		"/validate/..", "/validate/../validate/widgets", "/validate/widgets/..", "/validate/widgets/../widgets", "/validate/./widgets",
		"/validate/%2e%2e", "/validate/%2e%2e/v3", "/validate/%2E%2E%2Fadmin", "/validate/..%2f..%2fadmin", "/validate/%252e%252e",
		"/validate/a%2Fb", "/validate/a%2fevents", "/validate/a%5cb", `/validate/a\b`,
		"/validate/", "/validate", "/validate//", "/validate//widgets", "//validate/widgets", "/validate/widgets/", "/validate/widgets//", "/",
		"/validate/" + strings.Repeat("a", 300), "/validate/" + strings.Repeat("a", 64),
		"/validate/w%C3%BCrfel", "/validate/würfel", "/validate/%F0%9F%92%A5", "/validate/%ff%fe", "/validate/wіdgets", // a Cyrillic і
		"/validate/.", "/validate/...", "/validate/.widgets", "/validate/wid.gets", "/validate/widgets.", "/validate/-widgets", "/validate/widgets-",
		"/validate/Widgets", "/validate/WIDGETS", "/VALIDATE/widgets",
		"/validate/widgets;a=b", "/validate/;", "/validate/widgets%3Fa=b", "/validate/widgets%23", "/validate/widgets:80", "/validate/user@widgets",
		"/validate/%00", "/validate/widgets%00", "/validate/widgets\x00", "/validate/widgets%0d%0aHost:evil", "/validate/widgets%0aX", "/validate/%20widgets",
		"/validate/widgets%2", "/validate/%zz", "/validate/widgets\tb",
		"/v3/widgets/events", "/validate/widgets/v3/admin/events",
		"https://evil.example/validate/../widgets", "https://evil.example/validate/a%2Fb", "https://evil.example", "evil.example:443", "*",
	}
	for i, target := range refused {
		status, told := s.raw(post(target, reviewOf(fmt.Sprintf("smuggled-%d", i), 0)))
		if status != http.StatusNotFound && status != http.StatusBadRequest {
			t.Errorf("%.80q is answered %d %s, want 404 or 400", target, status, told)
		}

		checkTold(t, told)
	}

	review := reviewOf("smuggled-inside", 0)
	inner := post("/validate/../admin", review)
	bodies := []string{
		// Two lengths, a length beside chunks, chunks that are none: whatever one of two servers makes of it, here it is one or none.
		post("/validate/widgets", review, "Content-Length: 5"),
		post("/validate/widgets", review, "Transfer-Encoding: identity"),
		post("/validate/widgets", review, "Transfer-Encoding: chunked, gzip"),
		post("/validate/widgets", "0\r\n\r\n"+inner, "Transfer-Encoding: chunked"),
		post("/validate/widgets", "0\r\n\r\n"+inner, "Transfer-Encoding: \x0bchunked"),
		post("/validate/widgets", "-1\r\n\r\n"+inner, "Transfer-Encoding: chunked"),
		"POST /validate/widgets HTTP/1.1\r\nHost: a\r\nContent-Length: +10\r\n\r\n" + inner,
		"POST /validate/widgets HTTP/1.1\r\nHost: a\r\nContent-Length : 10\r\n\r\n" + inner,
		"POST /validate/widgets HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n" + inner,
		"POST /validate/widgets\r\nX: HTTP/1.1\r\n\r\n" + inner,
		"POST  /validate/widgets HTTP/1.1\r\nHost: a\r\n\r\n" + inner,
		"POST /validate/widgets HTTP/1.1\nHost: a\n\n" + inner,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + inner,
	}
	for _, text := range bodies {
		status, told := s.raw(text)
		if status != 0 && (status < 400 || status == http.StatusInternalServerError) {
			t.Errorf("%.120q is answered %d %s, want a refusal", text, status, told)
		}

		checkTold(t, told)
	}

	// What is right passes, however it is written: it is the last, so that what came before it would have arrived.
	for i, target := range []string{"/validate/widgets?timeout=2s", "/validate/%77idgets", "https://evil.example/validate/widgets"} {
		name := fmt.Sprintf("right-%d", i)
		if status, told := s.raw(post(target, reviewOf(name, 0))); status != http.StatusOK {
			t.Errorf("%q is answered %d %s, want 200", target, status, told)
		}

		s.awaitEvent(name)
	}

	targets, names := s.recorder.seen()
	for _, target := range targets {
		if target != "POST /v3/"+manager+"/events" {
			t.Errorf("the control plane was asked %q", target)
		}
	}

	for _, name := range names {
		if strings.Contains(name, "smuggled") {
			t.Errorf("the event of %s reached the control plane", name)
		}
	}
}

// inside is what a stranger must not read: where the code is, what it is made of, where its keys are.
var inside = regexp.MustCompile(`goroutine|\.go:\d|runtime error|/tmp/|tls\.key|BEGIN |panic|github\.com`)

func checkTold(t *testing.T, told string) {
	t.Helper()

	if inside.MatchString(told) {
		t.Errorf("a stranger is told %q", told)
	}
}

// TestMetricsPortServesNothingElse asks the metrics port for all that other servers have there.
func TestMetricsPortServesNothingElse(t *testing.T) {
	s := newScene(t, nil)
	client := &http.Client{
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	ask := func(method, target string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.metrics(), strings.NewReader(reviewOf("by-metrics", 0)))
		if err != nil {
			t.Fatal(err)
		}

		request.URL.Opaque = target
		request.Header.Set("Content-Type", "application/json")

		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()

		told, _ := io.ReadAll(answer.Body) // What is there is checked.

		return answer.StatusCode, string(told)
	}

	for _, target := range []string{"/metrics", "/readyz", "/healthz"} {
		if status, _ := ask(http.MethodGet, target); status != http.StatusOK {
			t.Errorf("GET %s is answered %d, want 200", target, status)
		}

		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodTrace} {
			if status, told := ask(method, target); status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s is answered %d %s, want 405", method, target, status, told)
			}
		}
	}

	for _, target := range []string{
		"/", "/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=1", "/debug/vars",
		"/debug/requests", "/validate/widgets", "/validate/canary", "/canary", "/v3/widgets/events", "/config", "/env", "/quit", "/metrics/", "/metrics/x",
		"/readyz/", "/readyz/keys", "/healthz/x", "/livez", "/version", "/favicon.ico", "/..", "/%2e%2e/etc/passwd", "/metrics%2fx", "/METRICS", "//", "/index.html", "*",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			status, told := ask(method, target)
			if status < 300 || status >= 500 {
				t.Errorf("%s %s is answered %d %s, want a refusal", method, target, status, told)
			}

			checkTold(t, told)
		}
	}

	if status, told := ask(http.MethodGet, "/metrics"); status != http.StatusOK || strings.Contains(told, "by-metrics") {
		t.Errorf("afterwards /metrics is answered %d", status)
	}

	if reviews := s.agent.Metric("runtime_watcher_agent_admission_duration_seconds_count"); reviews != 0 {
		t.Errorf("%v requests reached the webhook by the metrics port", reviews)
	}
}
