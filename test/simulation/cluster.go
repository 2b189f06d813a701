package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission/canary"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

// cluster is a runtime: a model of its API server with its etcd, and its agents.
type cluster struct {
	world *world
	plan  *RuntimePlan
	keys  keySet

	mu       sync.Mutex
	older    bool // new agents use contract v1
	objects  map[string]*object
	watchers []core.Manager
	webhook  bool
	unproved bool     // the webhook is removed, and no canary notices
	agents   []*agent // nil while one is down
	lives    []int
	turn     int
	only     *agent // the API server calls this one; nil: all in turn
}

// object is the state in etcd.
type object struct {
	version int // counts commits, deletions included
	exists  bool
	owner   string
}

// object returns the name of an object, which no other runtime has.
func (p *Plan) object(runtime, index int) string {
	return fmt.Sprintf("%s-object-%s%d", p.Runtimes[runtime].Name, strings.Repeat("x", p.Padding), index)
}

func newCluster(w *world, index int) *cluster {
	plan := &w.plan.Runtimes[index]
	c := &cluster{
		world: w, plan: plan, objects: make(map[string]*object), watchers: slices.Clone(w.plan.Managers),
		webhook: true, agents: make([]*agent, plan.Agents), lives: make([]int, plan.Agents),
	}

	for i := range plan.Objects {
		c.objects[w.plan.object(index, i)] = &object{version: 1, exists: true, owner: plan.owner(i)}
	}

	c.keys.load(w.pki.clientKeys(plan.Name))

	for i := range w.plan.Faults {
		if f := &w.plan.Faults[i]; f.Kind == CertificateExpired && f.Runtime == index {
			c.expire(w.began.Add(f.At))
		}
	}

	return c
}

// otherOwner is the suffix of the second owner of a runtime.
const otherOwner = "-b"

// owner returns the name of the owner of an object.
func (r *RuntimePlan) owner(object int) string {
	if r.Owners > 1 && object%2 == 1 {
		return r.Name + otherOwner
	}

	return r.Name
}

// contract returns the contract of a new agent.
func (c *cluster) contract() contract.Version {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.older {
		return contract.V1
	}

	return c.plan.Contract
}

// downgrade makes new agents use contract v1.
func (c *cluster) downgrade() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.older = true
}

// read returns all objects.
func (c *cluster) read() map[string]object {
	c.mu.Lock()
	defer c.mu.Unlock()

	objects := make(map[string]object, len(c.objects))
	for name, o := range c.objects {
		objects[name] = *o
	}

	return objects
}

func (c *cluster) watch(manager core.Manager) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !slices.Contains(c.watchers, manager) {
		c.watchers = append(c.watchers, manager)
	}
}

// canaryMisses is the longest removal that a canary, which writes every 30 s, may not notice.
const canaryMisses = 31 * time.Second

func (c *cluster) removeWebhook(length time.Duration) (restore func()) {
	broken := c.world.history.Break(c.plan.Name, "webhook")
	c.setWebhook(false, !c.plan.Canary || length < canaryMisses)

	return func() {
		c.setWebhook(true, false)
		broken()
	}
}

func (c *cluster) setWebhook(on, unproved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.webhook, c.unproved = on, unproved
}

// isBlind reports whether a write now reaches no agent, and no canary notices.
func (c *cluster) isBlind() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.unproved
}

// endpoint returns the agent that the API server calls next, nil if there is none.
func (c *cluster) endpoint() *agent {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.webhook {
		return nil
	}

	if c.only != nil {
		return c.only
	}

	for range c.agents {
		c.turn++
		if a := c.agents[c.turn%len(c.agents)]; a != nil {
			return a
		}
	}

	return nil
}

// remind writes once for each agent, so that each learns its owners and managers.
func (c *cluster) remind(w Write) {
	c.mu.Lock()
	agents := slices.Clone(c.agents)
	c.mu.Unlock()

	for _, a := range agents {
		c.prefer(a)
		c.write(w)
	}

	c.prefer(nil)
}

// prefer makes the API server call one agent.
func (c *cluster) prefer(a *agent) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.only = a
}

// write calls the webhooks, commits after the delay, and repeats both after a conflict.
func (c *cluster) write(w Write) {
	name := c.world.plan.object(w.Runtime, w.Object)

	for {
		before := c.get(name)
		if w.Kind == Delete && !before.exists {
			w.Kind = Update // It creates the object again.
		}

		blind := c.isBlind()
		c.review(name, before, w)
		sleep(w.Delay)

		if w.Reject || w.Kind == DryRun || w.Kind == OtherManager {
			return
		}

		if c.commit(name, before, w, blind) {
			return
		}

		w.Delay = time.Millisecond
	}
}

func (c *cluster) get(name string) object {
	c.mu.Lock()
	defer c.mu.Unlock()

	return *c.objects[name]
}

// commit reports false on a conflict.
func (c *cluster) commit(name string, before object, w Write, blind bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	o := c.objects[name]
	if *o != before {
		return false
	}

	if w.Kind == Touch && before.exists {
		return true // No watched field changes.
	}

	o.version++
	o.exists = w.Kind != Delete
	c.world.history.Commit(c.plan.Name, name, o.version, w.Delay, blind, w.Kind == Unreadable)
	c.world.logf("commit %s version %d", name, o.version)

	return true
}

// review calls the webhooks of all managers concurrently, as an API server does.
func (c *cluster) review(name string, before object, w Write) {
	c.mu.Lock()
	watchers := slices.Clone(c.watchers)
	c.mu.Unlock()

	if w.Kind != DryRun && (w.Kind != Touch || !before.exists) {
		c.world.history.Changes(name)
	}

	var calls sync.WaitGroup
	defer calls.Wait()

	for _, manager := range watchers {
		if i := slices.Index(c.world.plan.Managers, manager); i < 0 || w.Kind != OtherManager && c.world.plan.isWatched(w.Object, i) {
			calls.Go(func() { c.call(manager, c.body(name, before, w.Kind)) })
		}
	}
}

// apiServer is the address from which reviews come.
const apiServer = "10.0.0.1:443"

// call sends a review to one agent, and checks the time of its answer.
func (c *cluster) call(manager core.Manager, body string) {
	a := c.endpoint()
	if a == nil || !a.answers() {
		return
	}

	request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/validate/"+string(manager), strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.RemoteAddr = apiServer
	answer := &answerRecorder{header: make(http.Header), answered: make(chan struct{})}
	started := time.Now()

	go func() {
		a.webhook.ServeHTTP(answer, request)
		answer.finish()
	}()

	<-answer.answered
	c.world.history.Answered(c.plan.Name, time.Since(started), answer.body())
}

// answerRecorder is an answer that is complete when it is flushed or when the handler returns, as in [net/http].
type answerRecorder struct {
	header   http.Header
	answered chan struct{}
	once     sync.Once

	mu   sync.Mutex
	text []byte
}

func (r *answerRecorder) Header() http.Header { return r.header }
func (r *answerRecorder) WriteHeader(int)     {}
func (r *answerRecorder) Flush()              { r.finish() }
func (r *answerRecorder) finish()             { r.once.Do(func() { close(r.answered) }) }

func (r *answerRecorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.text = append(r.text, b...)

	return len(b), nil
}

func (r *answerRecorder) body() string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return string(r.text)
}

// invent calls the webhook for unknown managers.
func (c *cluster) invent(n int) {
	for i := range n {
		manager := core.Manager(fmt.Sprintf("invented-%d", i))
		c.call(manager, c.body(c.world.plan.object(0, 0), object{owner: c.plan.Name}, Update))
	}
}

// strangers is the number of clients with unfinished reviews. Together they announce more than maxBodies.
const strangers = 10

// openReviews makes strangers announce large reviews and send a part, until the end.
func (c *cluster) openReviews(part int) (end func()) {
	gone := make(chan struct{})

	if a := c.endpoint(); a != nil {
		for i := range strangers {
			go a.webhook.ServeHTTP(httptest.NewRecorder(), c.silentReview(i, &silentBody{gone: gone, left: part}))
		}
	}

	return func() { close(gone) }
}

func (c *cluster) silentReview(stranger int, body *silentBody) *http.Request {
	request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/validate/"+string(c.world.plan.Managers[0]), body)
	request.Header.Set("Content-Type", "application/json")
	request.ContentLength = announced(stranger)
	request.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", stranger)

	return request
}

// announced returns the length of a stranger's review. Together they are as much as maxBodies.
func announced(stranger int) int64 {
	lengths := []int64{maxBody, 500 << 10, 200 << 10, 20 << 10}

	return lengths[min(stranger, len(lengths)-1)]
}

// silentBody returns some bytes, and then blocks until the stranger is gone.
type silentBody struct {
	gone <-chan struct{}
	left int
}

// Read implements [io.Reader].
func (b *silentBody) Read(p []byte) (int, error) {
	if n := min(b.left, len(p)); n > 0 {
		clear(p[:n])
		b.left -= n

		return n, nil
	}

	<-b.gone

	return 0, io.ErrUnexpectedEOF
}

// body is an AdmissionReview.
func (c *cluster) body(name string, before object, kind WriteKind) string {
	if kind == Unreadable {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":{"broken":`
	}

	operation, after := "UPDATE", before.version+1

	switch {
	case kind == Delete:
		operation = "DELETE"
	case !before.exists:
		operation = "CREATE"
	case kind == Touch:
		after = before.version
	}

	oldObject, newObject := "null", "null"
	if before.exists {
		oldObject = c.object(name, before, "")
	}

	if kind != Delete {
		newObject = c.object(name, object{version: after, owner: before.owner}, kind)
	}

	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","kind":`+
		`{"group":"example.com","version":"v1","kind":"Widget"},"name":%q,"namespace":"default","operation":%q,`+
		`"dryRun":%v,"oldObject":%s,"object":%s}}`, name, operation, kind == DryRun, oldObject, newObject)
}

func (c *cluster) object(name string, o object, kind WriteKind) string {
	owner := ownerNamespace + "/" + o.owner
	if kind == BadOwner {
		owner = "no owner at all"
	}

	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q,"namespace":"default",`+
		`"generation":%d,"annotations":{%q:%q}},"spec":{"version":%d,"bulk":%q}}`,
		name, o.version, core.OwnerAnnotation, owner, o.version, strings.Repeat("x", c.plan.Bulk))
}

// ownerNamespace is that of the objects in the control plane which stand for runtimes.
const ownerNamespace = "kcp"

// lease is the object that the canary writes.
type lease struct {
	cluster *cluster
	writer  *agent
}

// Write implements [canary.Writer].
func (l lease) Write(ctx context.Context, nonce string) ([]string, error) {
	l.writer.awaitResume()

	if a := l.cluster.endpoint(); a == nil || !a.answers() {
		return nil, ctx.Err()
	}

	body := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1",`+
		`"object":{"metadata":{"annotations":{%q:%q}}}}}`, "operator.kyma-project.io/canary-nonce", nonce)
	recorder := httptest.NewRecorder()
	canary.Handler{}.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodPost, canary.Path, strings.NewReader(body)))

	var answer struct {
		Response struct {
			Warnings []string `json:"warnings"`
		} `json:"response"`
	}

	err := json.Unmarshal(recorder.Body.Bytes(), &answer)

	return answer.Response.Warnings, err
}
