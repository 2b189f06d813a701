package remotetest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Attack is a hostile answer that the administrator of a cluster can send.
type Attack struct {
	Name  string
	Spoil Spoil
	// Slow attacks take as long as the bounds allow. All other attacks end within seconds.
	Slow bool
}

const mega = 1 << 20

// Attacks returns attacks on any program that reads from a cluster. Each attack spoils every
// answer.
func Attacks() []Attack {
	return []Attack{
		{Name: "a list of empty objects", Spoil: Repeat(http.StatusOK, `{"x":[{}`, `,{}`, `]}`, 8*mega)},
		{Name: "a list of items", Spoil: Repeat(http.StatusOK, `{"kind":"List","items":[{}`, `,{}`, `]}`, 8*mega)},
		{Name: "a list of fields", Spoil: Repeat(http.StatusOK, `{"x":[{"a":0}`, `,{"a":0}`, `]}`, 8*mega)},
		{Name: "nested lists", Spoil: Repeat(http.StatusOK, `{"x":[0`, `,[[[[0]]]]`, `]}`, 8*mega)},
		{Name: "nested objects", Spoil: Repeat(http.StatusOK, `{"x":[0`, `,{"a":{"a":{"a":0}}}`, `]}`, 8*mega)},
		{Name: "deep lists", Spoil: Repeat(http.StatusOK, `{"x":`, `[`, ``, 8*mega)},
		{Name: "a large text", Spoil: Repeat(http.StatusOK, `{"x":"`, "a", `"}`, 8*mega)},
		{Name: "invalid characters", Spoil: Repeat(http.StatusOK, `{"x":"`, "\xff", `"}`, 8*mega)},
		{Name: "an open end", Spoil: Repeat(http.StatusOK, `{"x":"`, "a", "", 64*mega)},
		{Name: "managed fields without end", Spoil: Repeat(http.StatusOK,
			`{"kind":"List","items":[{"metadata":{"managedFields":[0`, `,{"a":{}}`, "", 64*mega)},
		{Name: "managed fields in other letters", Spoil: Repeat(http.StatusOK,
			`{"kind":"List","items":[{"metadata":{"managedFi\u0065lds":[0`, `,{"a":{}}`, `]}}]}`, 8*mega)},
		{Name: "an error text", Spoil: Repeat(http.StatusInternalServerError, ``, "a", "", 8*mega)},
		{Name: "a status", Spoil: Repeat(http.StatusForbidden,
			`{"kind":"Status","apiVersion":"v1","reason":"Forbidden","code":403,"message":"`, "a", `"}`, 8*mega)},
		{Name: "a page without an API server", Spoil: Repeat(http.StatusNotFound, `<html>`, "a", `</html>`, 100)},
		{Name: "headers", Spoil: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("a", 1000))
			}
			return answer(w, http.StatusOK, "{", " ", "}", 1)
		}},
		{Name: "an alias of YAML", Spoil: content("application/yaml",
			"a: &a [1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b]\n")},
		{Name: "Protocol Buffers", Spoil: content("application/vnd.kubernetes.protobuf", "k8s\x00\n\x04\n\x00")},
		{Name: "a redirect", Spoil: func(w http.ResponseWriter, request *http.Request, _ []byte) bool {
			http.Redirect(w, request, "http://192.0.2.1/", http.StatusTemporaryRedirect)
			return true
		}},
		{Name: "a time to wait", Spoil: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}},
		{Name: "short times to wait", Spoil: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}},
		{Name: "answers that end early", Spoil: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{Name: "pages without end", Spoil: Endless(500)},
		{Name: "large pages without end", Spoil: Endless(15_000)},
		{Name: "empty pages without end", Spoil: Endless(0)},
		{Name: "pages with large tokens", Spoil: LargeToken(6 * mega)},
		{Name: "no answer", Slow: true, Spoil: func(_ http.ResponseWriter, request *http.Request, _ []byte) bool {
			<-request.Context().Done()
			return true
		}},
		{Name: "an answer byte by byte", Slow: true, Spoil: trickle},
	}
}

// Endless answers each list with a page of new names and always promises another page. Requests for
// single objects get the honest answer.
func Endless(names int) Spoil {
	var last, pages atomic.Int64
	return func(w http.ResponseWriter, request *http.Request, _ []byte) bool {
		if !isList(request.URL.Path) {
			return false
		}

		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",
			"metadata":{"continue":"p%d"},"items":[`, pages.Add(1))
		for n := range names {
			if n > 0 {
				_, _ = io.WriteString(w, ",")
			}
			_, _ = fmt.Fprintf(w, `{"metadata":{"name":"n%d","namespace":"default"}}`, last.Add(1))
		}

		_, _ = io.WriteString(w, "]}")
		return true
	}
}

// LargeToken answers each list with an empty page and a continue token of size bytes. A client that
// requests the next page sends the token back. Requests for single objects get the honest answer.
func LargeToken(size int) Spoil {
	return func(w http.ResponseWriter, request *http.Request, _ []byte) bool {
		if !isList(request.URL.Path) {
			return false
		}

		const before = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"continue":"`
		return answer(w, http.StatusOK, before, "a", `"},"items":[]}`, size)
	}
}

// Repeat answers with a text that is repeated up to a size in bytes, between a beginning and an
// end.
func Repeat(status int, begin, part, end string, size int) Spoil {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		return answer(w, status, begin, part, end, size)
	}
}

func answer(w http.ResponseWriter, status int, begin, part, end string, size int) bool {
	const least = 32 << 10
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	chunk := strings.Repeat(part, max(1, min(size, least)/len(part)))

	_, err := io.WriteString(w, begin)
	for sent := 0; sent < size && err == nil; sent += len(chunk) {
		_, err = io.WriteString(w, chunk)
	}

	_, _ = io.WriteString(w, end)
	return true
}

func content(kind, text string) Spoil {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, text)
		return true
	}
}

func trickle(w http.ResponseWriter, request *http.Request, _ []byte) bool {
	w.Header().Set("Content-Type", "application/json")
	each := time.NewTicker(time.Second / 2)
	defer each.Stop()
	for {
		if _, err := io.WriteString(w, " "); err != nil {
			return true
		}

		_ = http.NewResponseController(w).Flush()
		select {
		case <-each.C:
		case <-request.Context().Done():
			return true
		}
	}
}
