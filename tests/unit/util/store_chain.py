"""What a session shows: its segments from the newest to the first, added up as docs/on-disk-format.md says."""
import hashlib
import itertools

from store_rows import TOKENS_PER_ROW, StoreError, need


def spelled(runs, limit):
    """The positions below `limit`."""
    return itertools.chain.from_iterable(range(start, min(start + length, limit)) for start, length in runs)


def runs_of(positions):
    """[3, 4, 5, 9] -> [[3, 3], [9, 1]]."""
    out = []
    for position in positions:
        if out and sum(out[-1]) == position:
            out[-1][1] += 1
        else:
            out.append([position, 1])
    return out


def shown(entries, lost):
    out = {"positions": runs_of(position for position, _ in entries)}
    return {**out, "lost": True} if lost else {
        **out, "sha256": hashlib.sha256(b"".join(entry for _, entry in entries)).hexdigest()}


class Chain:
    """Of one session; a StoreError says why it could not be opened.

    `clusters`, `carried`: {(layer, head, cluster or buffer): [(position, entry's bytes), ...]};
    `evicted`: {(layer, head): {positions}}; `index`: {(layer, head, cluster): (stale, entries, row)};
    `lost`: keys of `clusters` and `carried` of which a page is damaged.
    """

    def __init__(self, store, number):
        self.store = store
        self.session = store.sessions[number]
        self.segments = self._segments(number)  # (segment, head, limit), the oldest first
        self.layout = self.session.layout
        self.checkpoint = self._newest_checkpoint()
        self.policy = self._policy()
        self.lost = set()
        self.tokens = self._tokens()
        self.clusters, self.carried, self.evicted = self._clusters(), self._carried(), self._evicted()
        self._check_positions()
        self.index = self._index()

    def _segments(self, number):
        session, out = self.session, []
        segment, limit = session.segment, session.tokens
        while segment:
            need(segment in self.store.heads, f"segment {segment} has no head")
            head = self.store.heads[segment]
            need((head.layout, head.key) == (session.layout, session.key), f"segment {segment} is of another model")
            need(head.sealed == bool(out), f"segment {segment} is {'' if head.sealed else 'not '}sealed")
            need(limit <= head.tokens and head.start <= head.tokens, f"segment {segment} ends at {head.tokens}")
            need(head.parent < segment and (head.parent == 0) == (head.start == 0), f"segment {segment} begins at "
                 f"{head.start}, its parent is {head.parent}")
            need(not out or out[-1][1].start > head.start, f"segment {out and out[-1][0]} begins not inside {segment}")
            out.append((segment, head, limit))
            segment, limit = head.parent, head.start
        need(out and out[0][1].tokens == session.tokens, f"the segment and session {number} differ in tokens")
        users = [other for other, row in self.store.sessions.items() if row.segment == session.segment]
        need(users == [number], f"segment {session.segment} is the open one of sessions {users}")
        return out[::-1]

    def _newest_checkpoint(self):
        """(segment, limit) of the last one in the chain that has a checkpoint, or None."""
        have = [(segment, limit) for segment, head, limit in self.segments if head.has_checkpoint]
        return have[-1] if have else None

    def _tokens(self):
        out = []
        for segment, head, limit in self.segments:
            ids = []
            end_block = -(-head.tokens // TOKENS_PER_ROW) if head.tokens > head.start else 0
            for block in range(head.start // TOKENS_PER_ROW, end_block):
                need((segment, block) in self.store.tokens, f"segment {segment} has no token ids of block {block}")
                begin = max(head.start, block * TOKENS_PER_ROW)
                end = min(head.tokens, (block + 1) * TOKENS_PER_ROW)
                row = self.store.tokens[segment, block]
                need(len(row) == end - begin, f"segment {segment} block {block}: {len(row)} ids for {begin} to {end}")
                ids += row
            out += ids[:max(0, limit - head.start)]
        need(len(out) == self.session.tokens, f"{len(out)} token ids of {self.session.tokens}")
        return out

    def _of(self, table, segment):
        return {where[1:]: value for where, value in table.items() if where[0] == segment}

    def _entries(self, where, parts, limit):
        out = []
        for part in parts:
            visible = list(zip(spelled(part.runs, limit), self.store.entries(part)))
            out += visible
            if visible and part.id in self.store.damaged_parts:
                self.lost.add(where)
        return out

    def _clusters(self):
        out = {}
        for segment, _, limit in self.segments:
            for where in self.store.masks:
                if where[0] == segment:
                    out.pop(where[1:], None)
                    self.lost.discard(where[1:])
            for where, parts in self._of(self.store.parts, segment).items():
                entries = out.setdefault(where, [])
                more = self._entries(where, parts, limit)
                need(not entries or not more or entries[-1][0] < more[0][0],
                     f"cluster {where}: segment {segment} begins at {more[:1]}, not above the older ones")
                entries += more
        return {where: entries for where, entries in out.items() if entries}

    def _carried(self):
        if not self.checkpoint:
            return {}
        segment, limit = self.checkpoint
        return {where: self._entries(where, parts, limit)
                for where, parts in self._of(self.store.carried, segment).items()}

    def _evicted(self):
        out = {}
        for segment, _, limit in self.segments:
            for (layer, head, _), runs in self._of(self.store.evicted, segment).items():
                out.setdefault((layer, head), set()).update(spelled(runs, limit))
        return out

    def _check_positions(self):
        for layer in range(self.layout.layers):
            for head in range(self.layout.heads):
                found = []
                for table in (self.clusters, self.carried):
                    found += [position for where, entries in table.items()
                              if where[0] == layer and where[1] in (head, -1) for position, _ in entries]
                for which in {head, -1}:
                    found += self.evicted.get((layer, which), ())
                if sorted(found) != list(range(self.session.tokens)):
                    raise StoreError(f"layer {layer} head {head} shows {runs_of(sorted(found))} for positions 0 to "
                                     f"{self.session.tokens}")

    def _index(self):
        out = {}
        for segment, _, _ in self.segments:
            for layer in range(self.layout.layers):
                if (segment, layer) in self.store.runs:
                    out = self._with_run(out, segment, layer)
            for where, row in self._of(self.store.index, segment).items():
                out.pop(where, None)
                if row:
                    out[where] = row
        return {where: row for where, row in out.items() if where in self.clusters}

    def _with_run(self, older, segment, layer):
        """The rows of older segments with a run's over them. What a damaged part said of which clusters is not known:
        between the records around it nothing is left."""
        run = self.store.runs[segment, layer]
        out = {where: row for where, row in older.items() if where[0] != layer or not run.older_rows_lost}
        last, lost = (layer, -2, 0), False
        for part in [*run.parts, None]:
            if part and part.id in self.store.damaged_parts:
                lost = True
                continue
            records = self.store.index_records(part) if part else []
            behind = (layer, *records[0][0]) if records else (layer + 1, -2, 0)
            need(last < behind, f"segment {segment} layer {layer}: the index run is not in order")
            out = {where: row for where, row in out.items() if not (lost and last < where < behind)}
            out.update(((layer, *where), row) for where, row in records)
            last, lost = (layer, *records[-1][0]) if records else behind, False
        return out

    def _policy(self):
        """Of the newest segment that has one; its random state is only the open segment's own."""
        for segment, _, _ in reversed(self.segments):
            if segment in self.store.policies:
                own = segment == self.session.segment
                return self.store.policies[segment] | ({} if own else {"random_state": b""})
        return None

    def to_json(self):
        session, policy = self.session, self.policy
        out = {"label": session.label.decode(), "epoch": session.epoch, "op_seq": session.op_seq,
               "token_ids": self.tokens, "uid": session.uid.hex(),
               "created_us": session.created_us, "checkpoint_us": session.checkpoint_us,
               "segments": [{"segment": segment, "start": head.start, "limit": limit, "sealed": head.sealed}
                            for segment, head, limit in self.segments],
               "policy": policy and {name: value.hex() if name != "version" else value
                                     for name, value in policy.items()}, "layers": []}
        for layer in range(self.layout.layers):
            out["layers"].append({str(head): self._head_json(layer, head) for head in range(-1, self.layout.heads)})
        return out

    def _head_json(self, layer, head):
        def of(table):
            return {where[2]: value for where, value in sorted(table.items()) if where[:2] == (layer, head)}
        def told(table):
            return {cluster: shown(entries, (layer, head, cluster) in self.lost)
                    for cluster, entries in of(table).items()}
        return {"clusters": told(self.clusters), "carried": told(self.carried),
                "evicted": runs_of(sorted(self.evicted.get((layer, head), ()))),
                "index": {cluster: {"stale": stale, "entries": entries, "row": row.hex()}
                          for cluster, (stale, entries, row) in of(self.index).items()}}
