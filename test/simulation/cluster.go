package simulation

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	agentlib "github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// cluster is a runtime: a model of its API server with its etcd, and its agents.
type cluster struct {
	world *world
	plan  *RuntimePlan
	keys  keySet
	// callers are the callers of the webhook. The lock guards their ca.
	callers callers
	// kept is the webhook configuration of agents that keep it, nil for other agents.
	kept *keptConfiguration

	mu sync.Mutex
	// revision is the last one of etcd at the time noted. The revisions of a restored etcd start
	// again.
	revision int64
	noted    time.Time
	older    bool // new agents use contract v1
	objects  map[string]*object
	watches  []watch.Watch
	webhook  bool
	unproved bool // the webhook is removed, and no canary notices
	removed  core.Manager
	agents   []*agent // nil while one is down
	lives    []int
	turn     int
	only     *agent // the API server calls this one; nil: all in turn
}

type object struct {
	version      int   // counts commits, deletions and restores included
	revision     int64 // the resourceVersion
	spec, status int
	uid          string
	exists       bool
	owner        string
	former       string       // owner
	until        int          // the last version of the former owner
	team         core.Manager // a label
}

// object returns the name of an object, which no other runtime has.
func (p *Plan) object(runtime, index int) string {
	return fmt.Sprintf("%s-object-%s%d", p.Runtimes[runtime].Name, strings.Repeat("x", p.Padding), index)
}

func newCluster(w *world, index int) *cluster {
	plan := &w.plan.Runtimes[index]
	c := &cluster{
		world: w, plan: plan, objects: make(map[string]*object), watches: w.plan.watches(),
		webhook: true, agents: make([]*agent, plan.Agents), lives: make([]int, plan.Agents),
		revision: firstRevision, noted: w.began,
	}
	for i := range plan.Objects {
		c.objects[w.plan.object(index, i)] = &object{
			version: 1, revision: c.nextRevision(), uid: fmt.Sprintf("first-%d", i), exists: true, owner: plan.owner(i), team: teamOf(i),
		}
	}
	c.load(w.pki.clientKeys(plan.Name), nil)
	if plan.Keeps {
		c.kept = newKeptConfiguration()
		w.must(os.WriteFile(w.pki.webhookCA(), w.pki.older.PEM, 0o600))
	}
	if plan.Callers {
		c.callers.ca = w.pki.older
		c.trustCallers(w.pki.older)
	}
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
	return r.Label + r.Name
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

// firstRevision is the revision of an etcd with a history. Other programs write otherWrites objects
// per second.
const (
	firstRevision = 1000
	otherWrites   = 20
)

// nextRevision returns the resourceVersion of one more write. The caller holds the lock.
func (c *cluster) nextRevision() int64 {
	now := time.Now()
	c.revision += 1 + int64(now.Sub(c.noted)/(time.Second/otherWrites))
	c.noted = now
	return c.revision
}

// backUp copies etcd, and returns the function that restores the copy. No agent sees a restore, because it is no
// write. bump is added to the revision, as a restore may do so that watches of clients end.
func (c *cluster) backUp(bump int64) (restore func()) {
	saved := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	revision := c.nextRevision()
	return func() { c.restore(saved, revision+bump) }
}

func (c *cluster) restore(saved map[string]object, revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision = revision
	c.noted = time.Now()
	for name, o := range c.objects {
		before := *o
		if before == saved[name] {
			continue
		}
		*o = saved[name]
		o.version = before.version + 1
		for _, manager := range c.world.plan.watching(before, *o) {
			c.world.history.Commit(c.plan.Name, name, manager, o.version, 0, false, true)
		}
		c.world.logf("restored %s version %d, revision %d after %d", name, o.version, o.revision, before.revision)
	}
}

func (c *cluster) read() map[string]object {
	c.mu.Lock()
	defer c.mu.Unlock()
	objects := make(map[string]object, len(c.objects))
	for name, o := range c.objects {
		objects[name] = *o
	}
	return objects
}

// watch makes the API server call the webhook for one more manager, unless it does.
func (c *cluster) watch(manager core.Manager) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if more := watchOf(manager); more.Name != c.watches[len(c.watches)-1].Name {
		c.watches = append(c.watches, more)
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

// removeWatch removes the webhook of one manager. The webhook of the canary stays.
func (c *cluster) removeWatch(manager core.Manager) (restore func()) {
	broken := c.world.history.Break(c.plan.Name, "watch")
	c.setRemoved(manager)
	return func() {
		c.setRemoved("")
		broken()
	}
}

func (c *cluster) setRemoved(manager core.Manager) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed = manager
}

// configuration returns the webhook configuration that the API server has.
func (c *cluster) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	c.mu.Lock()
	watches, removed := slices.Clone(c.watches), c.removed
	c.mu.Unlock()
	stored := c.world.configuration(watches)
	stored.Webhooks = slices.DeleteFunc(stored.Webhooks, func(hook admissionregistrationv1.ValidatingWebhook) bool {
		return calledFor(&hook) == removed
	})
	return stored
}

func (c *cluster) setWebhook(on, unproved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.webhook = on
	c.unproved = unproved
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
		blind, uid := c.isBlind(), before.uid
		if !before.exists {
			uid = fmt.Sprintf("uid-%d", c.world.uids.Add(1))
		}
		after := c.plan.after(before, uid, w.Kind)
		c.review(name, before, after, w)
		sleep(w.Delay)
		if w.Reject || w.Kind == DryRun || w.Kind == OtherManager {
			return
		}
		if c.commit(name, before, after, w, blind) {
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

// after returns the state of an object after a write.
func (r *RuntimePlan) after(o object, uid string, kind WriteKind) object {
	switch {
	case kind == Touch && o.exists: // No watched field changes.
		return o
	case kind == Delete:
		o.exists = false
	case !o.exists:
		o.exists, o.uid, o.spec = true, uid, o.spec+1
	case kind == Status:
		o.status++
	case kind == Relabel:
		o.team = nextTeam(o.team)
	case kind == Transfer && r.Owners > 1:
		o.former, o.until = o.owner, o.version
		o.owner = r.owner(slices.Index([]string{r.owner(1), r.owner(0)}, o.owner))
	default:
		o.spec++
	}
	o.version++
	return o
}

// commit reports false on a conflict.
func (c *cluster) commit(name string, before, after object, w Write, blind bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[name]
	if *o != before {
		return false
	}
	*o = after
	o.revision = c.nextRevision()
	for _, manager := range c.world.plan.watching(before, after) {
		c.world.history.Commit(c.plan.Name, name, manager, o.version, w.Delay, blind, w.Kind == Unreadable)
	}
	c.world.logf("commit %s version %d", name, o.version)
	return true
}

// review calls the webhooks concurrently, as an API server does with the configuration of the agent.
func (c *cluster) review(name string, before, after object, w Write) {
	c.mu.Lock()
	watches, removed := slices.Clone(c.watches), c.removed
	c.mu.Unlock()
	for _, manager := range c.world.plan.watching(before, after) {
		if w.Kind != DryRun {
			c.world.history.Changes(name, manager)
		}
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	for _, hook := range c.webhooks(watches) {
		served := slices.Contains(c.world.plan.Managers, hook.manager)
		if hook.manager != removed && hook.matches(before, after) && (!served || w.Kind != OtherManager) {
			calls.Go(func() { c.call(hook.manager, c.body(name, before, after, w.Kind)) })
		}
	}
}

// call sends a review to one agent, and checks the time of its answer. A call that fails changes nothing.
func (c *cluster) call(manager core.Manager, body string) {
	a := c.endpoint()
	if a == nil {
		return
	}
	started := time.Now()
	answer, err := a.ask(context.Background(), "/validate/"+string(manager), body)
	if err == nil && a.ranSince(started) {
		c.world.history.Answered(c.plan.Name, time.Since(started), answer)
	}
}

// ask is a call of the API server.
func (a *agent) ask(ctx context.Context, path, body string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	answer, err := lab.Post(ctx, &http.Client{Transport: a.api}, "https://agent"+path, body)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// invent calls the webhook for unknown managers.
func (c *cluster) invent(n int) {
	for i := range n {
		manager := core.Manager(fmt.Sprintf("invented-%d", i))
		before := object{owner: c.plan.Name}
		c.call(manager, c.body(c.world.plan.object(0, 0), before, c.plan.after(before, "", Update), Update))
	}
}

func (c *cluster) body(name string, before, after object, kind WriteKind) string {
	if kind == Unreadable {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":{"broken":`
	}
	operation := "UPDATE"
	oldObject := "null"
	newObject := "null"
	if before.exists {
		oldObject = c.object(name, before, "")
	} else {
		operation = "CREATE"
	}
	if after.exists {
		newObject = c.object(name, after, kind)
	} else {
		operation = "DELETE"
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","kind":`+
		`{"group":"example.com","version":"v1","kind":"Widget"},"name":%q,"namespace":"default","operation":%q,`+
		`"subResource":%q,"dryRun":%v,"oldObject":%s,"object":%s}}`,
		name, operation, subresource(before, after), kind == DryRun, oldObject, newObject)
}

func (c *cluster) object(name string, o object, kind WriteKind) string {
	owner := ownerNamespace + "/" + o.owner
	if kind == BadOwner {
		owner = "no owner at all"
	}
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q,"namespace":"default",`+
		`"uid":%q,"resourceVersion":"%d","generation":%d,"annotations":{%q:%q},"labels":{%q:%q}},`+
		`"spec":{"version":%d,"bulk":%q},"status":{"version":%d}}`,
		name, o.uid, o.revision, o.spec, core.OwnerAnnotation, owner, teamLabel, o.team,
		o.spec, strings.Repeat("x", c.plan.Bulk), o.status)
}

// ownerNamespace is the namespace of the objects in the control plane that represent runtimes.
const ownerNamespace = "kcp"

// lease is the object that the canary writes.
type lease struct {
	cluster *cluster
	writer  *agent
}

func (l lease) write(ctx context.Context, nonce string) (agentlib.CanaryAnswer, error) {
	l.writer.awaitResume()
	a := l.cluster.endpoint()
	if l.cluster.kept != nil && !l.cluster.kept.callsForCanary() {
		a = nil
	}
	if a == nil {
		l.writer.history.Missed()
		return l.cluster.patched(nil), ctx.Err()
	}
	text, err := a.ask(ctx, canary.Path, fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1",`+
		`"object":{"metadata":{"annotations":{%q:%q}}}}}`, "runtime-watcher/canary-nonce", nonce))
	if err != nil {
		l.writer.history.Missed()
		return l.cluster.patched(nil), ctx.Err() // The write succeeds without the webhook.
	}
	var answer struct {
		Response struct {
			Warnings []string `json:"warnings"`
		} `json:"response"`
	}
	err = json.Unmarshal([]byte(text), &answer)
	return l.cluster.patched(answer.Response.Warnings), err
}

// patched returns the answer to a write of the Lease.
func (c *cluster) patched(warnings []string) agentlib.CanaryAnswer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return agentlib.CanaryAnswer{Warnings: warnings, Version: strconv.FormatInt(c.nextRevision(), 10)}
}

// teamLabel selects objects. Its value is a manager, or everybody for both.
const (
	teamLabel              = "example.com/team"
	everybody core.Manager = "everybody"
)

// teamOf returns the first team of an object. Of two managers, each also watches objects alone.
func teamOf(object int) core.Manager { return []core.Manager{everybody, "alpha", "beta"}[object%3] }

// nextTeam returns the team after a change of the label.
func nextTeam(team core.Manager) core.Manager {
	return map[core.Manager]core.Manager{everybody: "alpha", "alpha": "beta", "beta": everybody}[team]
}

// selects reports whether watches select objects by their team.
func (p *Plan) selects() bool { return p.Selective || len(p.Managers) > 1 }

// isWatched reports whether a manager watches the objects of a team.
func (p *Plan) isWatched(team, manager core.Manager) bool {
	return !p.selects() || team == everybody || team == manager
}

// watching returns the managers that must learn of a change.
func (p *Plan) watching(before, after object) (all []core.Manager) {
	for _, manager := range p.Managers {
		part := before.version != after.version
		if manager == p.Status || before.status != after.status {
			part = manager == p.Status && before.status != after.status
		}
		if part && (before.exists && p.isWatched(before.team, manager) || after.exists && p.isWatched(after.team, manager)) {
			all = append(all, manager)
		}
	}
	return all
}

func (p *Plan) watches() (all []watch.Watch) {
	for _, manager := range p.Managers {
		w := watchOf(manager)
		if p.selects() {
			w.Selector.Requirements = []watch.Requirement{{Key: teamLabel, Operator: "In", Values: []string{string(everybody), string(manager)}}}
		}
		if manager == p.Status {
			w.Field = core.FieldStatus
		}
		all = append(all, w)
	}
	return all
}

// watchOf returns a watch of all widgets.
func watchOf(manager core.Manager) watch.Watch {
	return watch.Watch{
		Name: types.NamespacedName{Namespace: ownerNamespace, Name: string(manager)}, Manager: manager,
		Resource: schema.GroupVersionResource{Group: widgets().Group, Version: widgets().Version, Resource: "widgets"},
	}
}

// webhook is a webhook of a configuration. Its conditions are not evaluated, so that the filter of
// the agent decides.
type webhook struct {
	manager  core.Manager
	resource string
	selector labels.Selector
}

// webhooks returns the webhooks for widgets in the configuration of an agent.
func (c *cluster) webhooks(watches []watch.Watch) (all []webhook) {
	made := c.world.configuration(watches)
	if c.kept != nil {
		made = c.kept.now()
	}
	if made == nil {
		return nil
	}
	for i := range made.Webhooks {
		hook := &made.Webhooks[i]
		if calledFor(hook) == "" {
			continue
		}
		all = append(all, webhook{calledFor(hook), hook.Rules[0].Resources[0], lab.Must(metav1.LabelSelectorAsSelector(hook.ObjectSelector))})
	}
	return all
}

// agentURL is the URL at which the API server calls the agent.
const agentURL = "https://agent"

func (w *world) configuration(watches []watch.Watch) *admissionregistrationv1.ValidatingWebhookConfiguration {
	endpoint := admission.Endpoint{URL: agentURL, CABundle: w.pki.older.PEM}
	return lab.Must(admission.WebhookConfiguration("agent", endpoint, watches, admission.ConfigurationOptions{}))
}

// calledFor returns the manager that gets the reviews of a webhook.
func calledFor(hook *admissionregistrationv1.ValidatingWebhook) core.Manager {
	manager, _ := admission.ManagerOf(strings.TrimPrefix(*hook.ClientConfig.URL, agentURL))
	return manager
}

// matches reports whether an API server calls the webhook for a write.
func (w *webhook) matches(before, after object) bool {
	resource := strings.TrimSuffix("widgets/"+subresource(before, after), "/")
	return resource == w.resource && slices.ContainsFunc([]object{before, after}, func(o object) bool {
		return o.exists && w.selector.Matches(labels.Set{teamLabel: string(o.team)})
	})
}

// subresource returns the subresource of a write.
func subresource(before, after object) string {
	if before.status != after.status {
		return "status"
	}
	return ""
}

// strangers is the number of clients with unfinished reviews. Together they announce as much as the agent has memory
// for reviews.
const strangers = 10

// openReviews makes strangers announce large reviews and send a part of each, until the end.
func (c *cluster) openReviews(part int) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	if a := c.endpoint(); a != nil {
		for i := range strangers {
			c.world.tasks.Go(func() { a.bother(ctx, i, part) })
		}
	}
	return cancel
}

// bother sends the first part of a review again whenever the agent closes the connection.
func (a *agent) bother(ctx context.Context, stranger, part int) {
	for ctx.Err() == nil && !a.killed.Load() {
		conn, err := a.own(a.cluster.world.network.connect(fmt.Sprintf("stranger %d", stranger), a.webhook, conditions{}))
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		secured := tls.Client(conn, a.cluster.world.pki.apiServer())
		length := announced(stranger)
		_, _ = fmt.Fprintf(secured, "POST /validate/%s HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", a.cluster.world.plan.Managers[0], length, make([]byte, min(part, length-1)))
		_, _ = io.Copy(io.Discard, secured)
		stop()
		_ = conn.Close()
		sleep(time.Second)
	}
}

// announced returns the length of a stranger's review.
func announced(stranger int) int {
	lengths := []int{8 << 20, 1 << 20, 500 << 10, 20 << 10}
	return lengths[min(stranger, len(lengths)-1)]
}

// askWrongPaths requests unknown paths with the certificate of a runtime, on two connections, as fast as the
// answers arrive.
func (w *world) askWrongPaths(f Fault) {
	const connections = 2
	var (
		asking sync.WaitGroup
		served atomic.Int64
	)
	began := time.Now()
	for range connections {
		asking.Go(func() { w.ask(f, &served) })
	}
	asking.Wait()
	w.history.Served(w.plan.Runtimes[f.Runtime].Name, int(served.Load()), time.Since(began))
}

// ask counts the answers except 429.
func (w *world) ask(f Fault, served *atomic.Int64) {
	name := w.plan.Runtimes[f.Runtime].Name
	transport := w.clusters[f.Runtime].transport(func(ctx context.Context) (net.Conn, error) {
		return w.network.dial(ctx, name, serverName)
	})
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), f.For)
	defer cancel()
	for ctx.Err() == nil {
		status, err := get(ctx, transport, "/no/such/page")
		switch {
		case err != nil:
			sleep(10 * time.Millisecond)
		case status != http.StatusTooManyRequests:
			served.Add(1)
		}
	}
}
