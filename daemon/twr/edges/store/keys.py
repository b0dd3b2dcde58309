"""The names of twr's keys: the scripts build the same ones from the hash tag."""

from dataclasses import dataclass

# One bit per update; a page of 8,192 takes 1 KiB, and ids of one week lie in few pages.
SEEN_PAGE = 8192


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of one bot begin with `tag`, which puts them into one slot of a cluster."""

    prefix: str
    bot: str

    @property
    def tag(self) -> str:
        return f"{{{self.prefix}:{self.bot}}}"

    def update(self, update_id: str) -> str:
        return f"{self.tag}:update:{update_id}"

    def job(self, job_id: str) -> str:
        return f"{self.tag}:job:{job_id}"

    def route(self, route: str, name: str) -> str:
        return f"{self.tag}:route:{route}:{name}"

    def instance(self, name: str) -> str:
        return f"{self.tag}:instance:{name}"

    @property
    def dead_letters(self) -> str:
        return f"{self.tag}:dead-letter"

    @property
    def alerts(self) -> str:
        return f"{self.tag}:alerts"

    @property
    def probe(self) -> str:
        return f"{self.tag}:probe"

    @property
    def username(self) -> str:
        return f"{self.tag}:username"


def update_id_of(job_id: str) -> str:
    """Telegram's update id within a job id (`<update_id>/<route>`; `~<n>` set aside)."""
    return job_id.partition("/")[0].partition("~")[0]


def route_of(job_id: str) -> str:
    """The route within a job id."""
    return job_id.partition("/")[2]
