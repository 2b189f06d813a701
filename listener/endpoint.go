package listener

import (
	"net/http"
	"path"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// endpoint answers the requests of one contract. Without a version it answers those of no contract.
type endpoint struct {
	*Listener

	version contract.Version
	bodies  *pool
}

// ServeHTTP implements [http.Handler].
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	started := e.opts.Now()
	x := exchange{endpoint: e, request: e.observing(r)}
	a := x.answer()
	a.write(w)
	x.report(&a, e.opts.Now().Sub(started))
}

// wildcard is the name of the path segment with the manager.
const wildcard = "manager"

// routes are the endpoints.
type routes struct {
	mux     *http.ServeMux
	nowhere *endpoint // answers requests for no contract
}

// newRoutes routes each contract to its endpoint. The endpoint without a version gets everything
// else.
func (l *Listener) newRoutes() *routes {
	all := &routes{http.NewServeMux(), &endpoint{Listener: l}}
	all.mux.Handle("/", all.nowhere)
	for _, version := range contract.Versions() {
		all.mux.Handle(pattern(version), &endpoint{Listener: l, version: version, bodies: newPool()})
	}
	return all
}

// ServeHTTP implements [http.Handler].
func (all *routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isClean(r) {
		all.nowhere.ServeHTTP(w, r)
		return
	}
	all.mux.ServeHTTP(w, r)
}

// pattern returns the path of a contract with a wildcard for the manager.
func pattern(version contract.Version) string {
	return strings.Replace(version.Path(wildcard), "/"+wildcard+"/", "/{"+wildcard+"}/", 1)
}

// isClean reports whether a mux takes the path as it is. It redirects others, which a sender of
// events must not follow.
func isClean(r *http.Request) bool {
	escaped := r.URL.EscapedPath()
	return strings.HasPrefix(escaped, "/") && path.Clean(escaped) == escaped && r.Method != http.MethodConnect
}
